//! Flags of a program: a page of the book, man pages, completions of shells.

use std::fmt::Write as _;

use anyhow::Context as _;
use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;

use crate::{cell, compare};

/// Heading of the flags of a command that have no heading of their own.
const OPTIONS: &str = "Options";

/// Returns the sections of a command and of its subcommands: usage, arguments, and a table of flags by heading.
///
/// `chart_value` gives the value of the Helm chart that sets an environment variable; with `None` for all of them the tables have
/// no such column.
#[must_use]
pub fn flags(command: &Command, chart_value: &dyn Fn(&str) -> Option<String>) -> String {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let mut text = String::new();
    section(&command, chart_value, &mut text);
    text
}

fn section(command: &Command, chart_value: &dyn Fn(&str) -> Option<String>, text: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let _ = writeln!(text, "## {name}\n");
    if let Some(about) = command.get_long_about().or_else(|| command.get_about()) {
        let _ = writeln!(text, "{}\n", about.to_string().replace('<', "&lt;"));
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let _ = writeln!(text, "```text\n{usage}\n```\n");
    for heading in headings(command) {
        let arguments = command
            .get_arguments()
            .filter(|argument| is_shown(argument));
        let of_heading = arguments.filter(|argument| heading_of(argument) == heading);
        table(heading, &of_heading.collect::<Vec<_>>(), chart_value, text);
    }
    if let Some(more) = command
        .get_after_long_help()
        .or_else(|| command.get_after_help())
    {
        let _ = writeln!(text, "```text\n{}\n```\n", more.to_string().trim());
    }
    for subcommand in command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        section(subcommand, chart_value, text);
    }
}

fn is_shown(argument: &Arg) -> bool {
    let explains_itself = matches!(
        argument.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    );
    !argument.is_hide_set() && !explains_itself
}

fn heading_of(argument: &Arg) -> &str {
    match argument.get_help_heading() {
        Some(heading) => heading,
        None if argument.is_positional() => "Arguments",
        None => OPTIONS,
    }
}

/// Returns the headings of a command's flags, in their order.
fn headings(command: &Command) -> Vec<&str> {
    let mut found = Vec::new();
    for argument in command
        .get_arguments()
        .filter(|argument| is_shown(argument))
    {
        let heading = heading_of(argument);
        if !found.contains(&heading) {
            found.push(heading);
        }
    }
    found
}

fn table(
    heading: &str,
    arguments: &[&Arg],
    chart_value: &dyn Fn(&str) -> Option<String>,
    text: &mut String,
) {
    let variable = |argument: &Arg| {
        let name = argument.get_env()?.to_str()?;
        Some(name.to_owned())
    };
    let value = |argument: &Arg| variable(argument).and_then(|name| chart_value(&name));
    let has_variables = arguments
        .iter()
        .any(|argument| argument.get_env().is_some());
    let has_values = arguments.iter().any(|argument| value(argument).is_some());
    let mut columns = vec!["flag"];
    if has_variables {
        columns.push("environment");
    }
    if has_values {
        columns.push("chart value");
    }
    columns.extend(["default", "meaning"]);
    let _ = writeln!(text, "### {heading}\n");
    let _ = writeln!(text, "| {} |", columns.join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(columns.len()));
    for argument in arguments {
        let code = |text: String| match text.is_empty() {
            true => String::new(),
            false => format!("`{text}`"),
        };
        let mut cells = vec![code(spelling(argument).replace('|', "\\|"))];
        if has_variables {
            cells.push(code(variable(argument).unwrap_or_default()));
        }
        if has_values {
            cells.push(code(value(argument).unwrap_or_default()));
        }
        cells.push(code(default_of(argument)));
        cells.push(meaning(argument));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text.push('\n');
}

/// Returns an argument as one writes it: `-o, --output <FORMAT>`.
fn spelling(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let values: Vec<String> = names.iter().map(|name| format!("<{name}>")).collect();
    let values = values.join(" ");
    let Some(long) = argument.get_long() else {
        return values;
    };
    let short = argument.get_short().map(|short| format!("-{short}, "));
    let flag = format!("{}--{long}", short.unwrap_or_default());
    // The names of controllers' values repeat the flag.
    let repeats = values == format!("<{}>", long.replace('-', "_").to_uppercase());
    match argument.get_action().takes_values() && !repeats {
        true => format!("{flag} {values}"),
        false => flag,
    }
}

fn default_of(argument: &Arg) -> String {
    if !argument.get_action().takes_values() {
        return String::new();
    }
    let defaults = argument.get_default_values().iter();
    let defaults: Vec<_> = defaults.map(|value| value.to_string_lossy()).collect();
    defaults.join(",")
}

/// Returns the help of an argument, with the values that it can have.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let values = argument.get_possible_values();
    let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
    let is_boolean = values
        .iter()
        .all(|value| ["true", "false"].contains(&value.get_name()));
    if argument.get_action().takes_values() && !is_boolean {
        let described = values.iter().map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        });
        let _ = write!(
            text,
            " Values: {}",
            described.collect::<Vec<_>>().join(", ")
        );
    }
    cell(&text)
}

/// Compares the man pages of a command and of its subcommands with those in `deploy/man`, or writes them.
///
/// # Errors
///
/// A man page is out of date, or cannot be read or written.
pub fn man_pages(command: &Command) -> anyhow::Result<()> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    man_page(&command)
}

fn man_page(command: &Command) -> anyhow::Result<()> {
    // The man page of a release must not depend on the day.
    let man = clap_mangen::Man::new(command.clone()).date("");
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8(page).context("a man page is UTF-8")?;
    compare(&format!("deploy/man/{}", man.get_filename()), &page)?;
    let mut shown = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    shown.try_for_each(man_page)
}

/// Compares the completions of a command for the usual shells with those in `deploy/completions`, or writes them.
///
/// # Errors
///
/// A file is out of date, or cannot be read or written.
pub fn completions(command: &Command) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), &name, &mut script);
        let script = String::from_utf8(script).context("a completion is UTF-8")?;
        compare(&format!("deploy/completions/{name}.{shell}"), &script)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::value_parser;

    use super::*;

    fn command() -> Command {
        Command::new("tool")
            .about("Does it.")
            .arg(
                Arg::new("cluster_name")
                    .long("cluster-name")
                    .value_name("CLUSTER_NAME")
                    .env("CLUSTER_NAME")
                    .default_value("")
                    .help_heading("AWS")
                    .help("Name of a <cluster>."),
            )
            .arg(Arg::new("all").long("all").action(ArgAction::SetTrue))
            .subcommand(
                Command::new("read").arg(
                    Arg::new("n")
                        .value_name("N")
                        .value_parser(value_parser!(u8)),
                ),
            )
            .subcommand(Command::new("secret").hide(true))
    }

    #[test]
    fn each_flag_is_a_row_under_its_heading() {
        let page = flags(&command(), &|name| {
            (name == "CLUSTER_NAME").then(|| "settings.clusterName".to_owned())
        });
        assert!(
            page.starts_with("## tool\n\nDoes it.\n\n```text\ntool [OPTIONS]"),
            "{page}"
        );
        let aws = "### AWS\n\n| flag | environment | chart value | default | meaning |\n|---|---|---|---|---|\n\
            | `--cluster-name` | `CLUSTER_NAME` | `settings.clusterName` |  | Name of a &lt;cluster>. |\n";
        assert!(page.contains(aws), "{page}");
        assert!(page.contains("| `--all` |  |  |\n"), "{page}");
        assert!(page.contains("## tool read\n"), "{page}");
        assert!(page.contains("| `<N>` |  |  |\n"), "{page}");
        assert!(!page.contains("secret"), "{page}");
    }
}
