//! The options of kubectl that every command with a connection takes, with kubectl's names and meaning.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCandidates;

use crate::completion;

/// kubectl's options; flattened into the arguments of a command.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Options of kubectl")]
pub struct KubectlFlags {
    /// Path of the kubeconfig, instead of the variable KUBECONFIG and ~/.kube/config.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(completion::contexts))]
    pub context: Option<String>,
    /// Cluster of the kubeconfig, instead of the context's.
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// User of the kubeconfig, instead of the context's.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Namespace, instead of the context's.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Label selector.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// How long to wait for an answer, as 30s or 2m; 0 means no limit.
    #[arg(long, value_name = "DURATION", value_parser = timeout, default_value = "0")]
    pub request_timeout: Timeout,
    /// Print tables without headers.
    #[arg(long)]
    pub no_headers: bool,
    /// User to impersonate.
    #[arg(long = "as", value_name = "USER")]
    pub as_user: Option<String>,
    /// Group to impersonate. May be repeated.
    #[arg(long = "as-group", value_name = "GROUP", requires = "as_user")]
    pub as_groups: Vec<String>,
    /// Report on standard error what is done; kubectl's levels (-v=6) are accepted, and equal.
    #[arg(
        short = 'v', long = "v", value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_value_t = 0,
        default_missing_value = "1", hide_default_value = true, action = ArgAction::Set
    )]
    pub verbosity: u8,
}

/// The value of `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// A table with more columns.
    Wide,
    /// Resource and name, one a line.
    Name,
}

/// A limit on the duration of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeout(
    /// `None`: no limit.
    pub Option<Duration>,
);

/// Parses a timeout as kubectl does: a Go duration, or a number of seconds.
fn timeout(text: &str) -> Result<Timeout, String> {
    let seconds = text.parse().map(Duration::from_secs).ok();
    let duration = seconds.or_else(|| {
        let parsed = karpenter_api::duration::parse(text).ok()?;
        Duration::try_from(parsed).ok()
    });
    match duration {
        Some(Duration::ZERO) => Ok(Timeout(None)),
        Some(duration) => Ok(Timeout(Some(duration))),
        None => Err("must be a duration, as 30s or 2m".to_owned()),
    }
}

impl KubectlFlags {
    /// Writes a line to standard error if `-v` was given.
    pub fn report(&self, line: &str) {
        if self.verbosity > 0 {
            eprintln!("{}", crate::output::escaped(line));
        }
    }

    /// Returns the options with which a kubectl reaches the same cluster as the same user.
    pub fn for_child(&self) -> Vec<std::ffi::OsString> {
        let mut args: Vec<std::ffi::OsString> = Vec::new();
        if let Some(path) = &self.kubeconfig {
            args.extend(["--kubeconfig".into(), path.into()]);
        }
        for (name, value) in [
            ("--context", &self.context),
            ("--cluster", &self.cluster),
            ("--user", &self.user),
            ("--as", &self.as_user),
        ] {
            if let Some(value) = value {
                args.extend([name.into(), value.into()]);
            }
        }
        for group in &self.as_groups {
            args.extend(["--as-group".into(), group.into()]);
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        names: Vec<String>,
        #[command(flatten)]
        kubectl: KubectlFlags,
    }

    fn parse(args: &[&str]) -> Command {
        Command::try_parse_from([&["x"], args].concat()).unwrap()
    }

    #[test]
    fn options_are_written_as_for_kubectl() {
        let line = "a -n shop --context=prod --as jane --as-group ops --as-group dev -l team=web -o yaml --no-headers -v";
        let command = parse(&line.split(' ').collect::<Vec<_>>());
        let flags = &command.kubectl;
        assert_eq!(command.names, ["a"]);
        assert_eq!(flags.namespace.as_deref(), Some("shop"));
        assert_eq!(flags.selector.as_deref(), Some("team=web"));
        assert_eq!(flags.output, Some(Format::Yaml));
        assert!(flags.no_headers && flags.verbosity == 1);
        assert_eq!(
            flags.for_child(),
            [
                "--context",
                "prod",
                "--as",
                "jane",
                "--as-group",
                "ops",
                "--as-group",
                "dev"
            ]
        );
    }

    #[test]
    fn a_level_of_verbosity_needs_an_equals_sign_so_that_a_name_may_follow() {
        assert_eq!(parse(&["-v=6", "a"]).kubectl.verbosity, 6);
        assert_eq!(parse(&["--v=6"]).kubectl.verbosity, 6);
        let command = parse(&["-v", "a"]);
        assert_eq!((command.kubectl.verbosity, command.names.len()), (1, 1));
        assert_eq!(parse(&[]).kubectl.verbosity, 0);
    }

    #[test]
    fn a_timeout_is_a_duration_or_a_number_of_seconds() {
        for (text, expected) in [
            ("0", Some(None)),
            ("0s", Some(None)),
            ("5", Some(Some(Duration::from_secs(5)))),
            ("1m30s", Some(Some(Duration::from_secs(90)))),
            ("-5s", None),
            ("soon", None),
        ] {
            assert_eq!(timeout(text).ok(), expected.map(Timeout), "{text}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for args in [["-A", "-n=shop"], ["--as-group", "ops"], ["-o", "xml"]] {
            let command = Command::try_parse_from([&["x"], &args[..]].concat());
            assert!(command.is_err(), "{args:?}");
        }
    }
}
