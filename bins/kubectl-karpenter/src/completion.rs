//! Completion of command lines: what `kubectl_complete-karpenter` prints.
//!
//! kubectl runs that program with the words after `kubectl karpenter`, the last of which is to be completed. It reads a candidate
//! from each line, with a description after a tab, and from the last line `:` and cobra's directive.
//!
//! UPSTREAM: k8s.io/kubectl pkg/cmd/plugin/plugin_completion.go, cobra's shell completions

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap_complete::engine::{CompletionCandidate, complete};

use crate::flags::KubectlFlags;
use crate::{cluster, output};

/// The hidden command that the program runs.
pub(crate) const COMMAND: &str = "__complete";

/// cobra's ShellCompDirectiveNoFileComp: the shell does not add the names of files.
const NO_FILES: u8 = 4;

/// The words after `kubectl karpenter`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Prints the candidates for the last word.
pub(crate) fn run(mut command: clap::Command, args: Args) -> anyhow::Result<ExitCode> {
    let mut words = vec![OsString::from(command.get_name())];
    words.extend(args.words);
    if words.len() == 1 {
        words.push(OsString::new());
    }
    let last = words.len() - 1;
    let directory = std::env::current_dir().ok();
    let candidates = complete(&mut command, words, last, directory.as_deref())?;
    output::print(&listed(&candidates))?;
    Ok(ExitCode::SUCCESS)
}

fn listed(candidates: &[CompletionCandidate]) -> String {
    let mut text = String::new();
    for candidate in candidates
        .iter()
        .filter(|candidate| !candidate.is_hide_set())
    {
        text.push_str(&output::escaped(&candidate.get_value().to_string_lossy()));
        let help = candidate.get_help().map(ToString::to_string);
        if let Some(line) = help.as_deref().and_then(|help| help.lines().next()) {
            text.push('\t');
            text.push_str(&output::escaped(line));
        }
        text.push('\n');
    }
    text.push_str(&format!(":{NO_FILES}\n"));
    text
}

/// Returns the contexts of the kubeconfig.
pub(crate) fn contexts() -> Vec<CompletionCandidate> {
    let found = cluster::kubeconfig(&typed()).ok().flatten();
    let contexts = found.into_iter().flat_map(|kubeconfig| kubeconfig.contexts);
    contexts
        .map(|context| CompletionCandidate::new(context.name))
        .collect()
}

/// Returns the options of the command line so far that select the cluster: candidates are to be of the same one.
pub(crate) fn typed() -> KubectlFlags {
    selection(std::env::args().skip(2))
}

fn selection(words: impl IntoIterator<Item = String>) -> KubectlFlags {
    let mut flags = KubectlFlags::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (option, given) = match word.split_once('=') {
            Some((option, value)) => (option.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        let slot = match option.as_str() {
            "--context" => &mut flags.context,
            "--cluster" => &mut flags.cluster,
            "--user" => &mut flags.user,
            "--as" => &mut flags.as_user,
            "--kubeconfig" => {
                flags.kubeconfig = given.or_else(|| words.next()).map(PathBuf::from);
                continue;
            }
            _ => continue,
        };
        *slot = given.or_else(|| words.next());
    }
    // The word that is being completed may be the value itself.
    flags.context = flags.context.filter(|name| !name.is_empty());
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_of_the_cluster_that_the_words_select() {
        let words = [
            "pause",
            "--context=prod",
            "--kubeconfig",
            "/tmp/k",
            "--user",
            "me",
            "de",
        ];
        let flags = selection(words.map(str::to_owned));
        assert_eq!(flags.context.as_deref(), Some("prod"));
        assert_eq!(flags.kubeconfig, Some(PathBuf::from("/tmp/k")));
        assert_eq!(flags.user.as_deref(), Some("me"));
        let flags = selection(["pause", "--context", ""].map(str::to_owned));
        assert_eq!(flags.context, None);
    }

    #[test]
    fn a_candidate_is_a_line_with_its_description_and_the_directive_is_last() {
        let candidates = [
            CompletionCandidate::new("pause").help(Some("Pause it.\nMore.".into())),
            CompletionCandidate::new("a\u{1b}b"),
        ];
        assert_eq!(listed(&candidates), "pause\tPause it.\na\\u{1b}b\n:4\n");
    }
}
