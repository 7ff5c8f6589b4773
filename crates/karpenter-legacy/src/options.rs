//! Settings for older generations, with the names of older releases.
//!
//! UPSTREAM: pkg/operator/options/options.go of v0.16 and v1.0

use clap::{ArgAction, Args};
use karpenter_kube::operator::ControllerRegistry;
use karpenter_kube::options::go_bool;

use crate::alpha::ProjectionSettings;
use crate::{controller, serving};

/// Settings for older generations.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "Older generations")]
pub struct LegacyOptions {
    /// Do not convert Provisioners and AWSNodeTemplates, even if their definitions are installed.
    #[arg(long, env = "DISABLE_LEGACY_RESOURCES", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub disable_legacy_resources: bool,
    /// Do not serve the conversion webhook, even if definitions use it.
    #[arg(long, env = "DISABLE_WEBHOOK", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub disable_webhook: bool,
    /// Port of the conversion webhook; it is only opened if definitions use the webhook.
    #[arg(long, env = "WEBHOOK_PORT", default_value_t = 8443)]
    pub webhook_port: u16,
    /// Accepted for compatibility, without effect: all metrics are served on one port.
    #[arg(long, env = "WEBHOOK_METRICS_PORT", default_value_t = 8001)]
    pub webhook_metrics_port: u16,
    /// Instance profile of AWSNodeTemplates without one.
    #[arg(long, env = "AWS_DEFAULT_INSTANCE_PROFILE", default_value = "")]
    pub aws_default_instance_profile: String,
}

impl Default for LegacyOptions {
    fn default() -> Self {
        Self {
            disable_legacy_resources: false,
            disable_webhook: false,
            webhook_port: 8443,
            webhook_metrics_port: 8001,
            aws_default_instance_profile: String::new(),
        }
    }
}

impl LegacyOptions {
    /// Adds the controller and the webhook to an operator, unless they are disabled.
    pub fn add(&self, controllers: &mut ControllerRegistry) {
        if !self.disable_legacy_resources {
            controller::add(controllers, self.settings());
        }
        if !self.disable_webhook && self.webhook_port != 0 {
            serving::add(controllers, self.webhook_port);
        }
    }

    /// Returns the settings of projections.
    #[must_use]
    pub fn settings(&self) -> ProjectionSettings {
        let profile = Some(self.aws_default_instance_profile.clone());
        ProjectionSettings {
            default_instance_profile: profile.filter(|profile| !profile.is_empty()),
            ..ProjectionSettings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        legacy: LegacyOptions,
    }

    fn read(args: &[&str]) -> Result<LegacyOptions, clap::Error> {
        let args = std::iter::once("karpenter").chain(args.iter().copied());
        Ok(Alone::try_parse_from(args)?.legacy)
    }

    #[test]
    fn no_flags_give_the_defaults() {
        assert_eq!(read(&[]).unwrap(), LegacyOptions::default());
        assert_eq!(
            LegacyOptions::default().settings().default_instance_profile,
            None
        );
    }

    #[test]
    fn flags_have_the_names_of_older_releases() {
        let options = read(&[
            "--webhook-port=9443",
            "--disable-webhook",
            "--aws-default-instance-profile=nodes",
        ])
        .unwrap();
        assert_eq!(
            (options.webhook_port, options.disable_webhook),
            (9443, true)
        );
        assert_eq!(
            options.settings().default_instance_profile.as_deref(),
            Some("nodes")
        );
        for bad in ["--webhook-port=70000", "--disable-webhook=maybe"] {
            assert!(read(&[bad]).is_err(), "{bad}");
        }
    }
}
