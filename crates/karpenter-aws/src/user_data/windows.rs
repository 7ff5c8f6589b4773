//! Windows: the user's lines, then PowerShell that calls the AMI's `Start-EKSBootstrap.ps1`.
// UPSTREAM: pkg/providers/amifamily/bootstrap/windows.go

use super::document::{UserData, UserDataError};
use super::kubelet::{flags, parse};
use super::settings::NodeSettings;

pub(super) fn generate(settings: &NodeSettings) -> Result<UserData, UserDataError> {
    let kubelet = parse(settings)?;
    let cluster = &settings.cluster;
    let mut text = "<powershell>\n".to_owned();
    if let Some(custom) = settings.custom.as_deref().filter(|text| !text.is_empty()) {
        text.push_str(custom);
        text.push('\n');
    }
    text.push_str(
        "[string]$EKSBootstrapScriptFile = \"$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1\"\n\
         & $EKSBootstrapScriptFile",
    );
    let mut argument = |name: &str, value: &str| {
        text.push_str(&format!(" -{name} '{}'", value.replace('\'', "''")));
    };
    argument("EKSClusterName", &cluster.name);
    argument("APIServerEndpoint", &cluster.endpoint);
    if let Some(authority) = &cluster.certificate_authority {
        argument("Base64ClusterCA", authority);
    }
    let flags = flags(&kubelet, settings);
    if !flags.is_empty() {
        argument("KubeletExtraArgs", &flags.join(" "));
    }
    if let Some(address) = kubelet.cluster_dns.first() {
        argument("DNSClusterIP", address);
    }
    text.push_str("\n</powershell>");
    Ok(UserData::new(text))
}
