//! AL2: the user's parts, then a shell script that calls the AMI's `bootstrap.sh`.
// UPSTREAM: pkg/providers/amifamily/bootstrap/eksbootstrap.go

use super::document::{UserData, UserDataError};
use super::kubelet::{flags, is_ipv6, parse};
use super::mime;
use super::settings::NodeSettings;
use crate::kubelet::Kubelet;

pub(super) fn generate(settings: &NodeSettings) -> Result<UserData, UserDataError> {
    let mut parts = match settings.custom.as_deref().unwrap_or_default() {
        "" => Vec::new(),
        text if mime::is_mime(text) => mime::parse(text)?,
        text => vec![mime::Part::script(text.to_owned())],
    };
    let kubelet = parse(settings)?;
    parts.push(mime::Part::script(script(settings, &kubelet)));
    Ok(UserData::new(mime::render(&parts)))
}

fn script(settings: &NodeSettings, kubelet: &Kubelet) -> String {
    let cluster = &settings.cluster;
    let mut call = format!(
        "/etc/eks/bootstrap.sh {} --apiserver-endpoint {}",
        quoted(&cluster.name),
        quoted(&cluster.endpoint)
    );
    if let Some(authority) = &cluster.certificate_authority {
        call.push_str(&format!(" --b64-cluster-ca {}", quoted(authority)));
    }
    let mut option = |text: &str| {
        call.push_str(" \\\n");
        call.push_str(text);
    };
    if is_ipv6(kubelet) {
        option("--ip-family ipv6");
    }
    if let Some(address) = kubelet.cluster_dns.first() {
        option(&format!("--dns-cluster-ip {}", quoted(address)));
    }
    // The number of pods is always passed to the kubelet: the AMI's own table must not replace it.
    option("--use-max-pods false");
    let flags = flags(kubelet, settings);
    if !flags.is_empty() {
        option(&format!(
            "--kubelet-extra-args {}",
            quoted(&flags.join(" "))
        ));
    }
    if settings.raid0 {
        option("--local-disks raid0");
    }
    format!(
        "#!/bin/bash -xe\n\
         exec > >(tee /var/log/user-data.log|logger -t user-data -s 2>/dev/console) 2>&1\n\
         {call}"
    )
}

/// Quotes a word for a shell command.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
