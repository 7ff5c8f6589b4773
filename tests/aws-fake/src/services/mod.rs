//! The services beside EC2, one module each; the permissions of all calls are IAM's.

pub(crate) mod eks;
pub(crate) mod iam;
pub(crate) mod permissions;
pub(crate) mod pricing;
pub(crate) mod sqs;
pub(crate) mod ssm;
pub(crate) mod sts;
