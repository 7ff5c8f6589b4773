//! The options of kubectl with the formats of a plan.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, ValueEnum, value_parser};

use crate::flags::KubectlFlags;

/// The value of `-o` for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PlanFormat {
    /// Text for a terminal.
    Text,
    /// Text with all steps.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// kubectl's options; `-o` has the formats of a plan.
#[derive(Debug, Clone, Default)]
pub(super) struct PlanFlags {
    pub(super) kubectl: KubectlFlags,
    pub(super) format: Option<PlanFormat>,
}

/// The id of `-o`.
const OUTPUT: &str = "output";

fn with_formats(argument: Arg) -> Arg {
    argument.value_parser(value_parser!(PlanFormat))
}

impl Args for PlanFlags {
    fn augment_args(command: Command) -> Command {
        KubectlFlags::augment_args(command).mut_arg(OUTPUT, with_formats)
    }

    fn augment_args_for_update(command: Command) -> Command {
        KubectlFlags::augment_args_for_update(command).mut_arg(OUTPUT, with_formats)
    }
}

impl FromArgMatches for PlanFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        let format = matches.remove_one(OUTPUT);
        Ok(Self {
            // Without `-o`, which has another type here.
            kubectl: KubectlFlags::from_arg_matches_mut(matches)?,
            format,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: PlanFlags,
    }

    #[test]
    fn a_plan_has_its_own_formats_beside_the_other_options_of_kubectl() {
        let line = Line::try_parse_from(["x", "-o", "text", "-n", "shop"]).unwrap();
        assert_eq!(line.flags.format, Some(PlanFormat::Text));
        assert_eq!(line.flags.kubectl.namespace.as_deref(), Some("shop"));
        assert_eq!(Line::try_parse_from(["x"]).unwrap().flags.format, None);
        assert!(Line::try_parse_from(["x", "-o", "name"]).is_err());
    }
}
