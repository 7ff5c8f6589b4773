//! EC2NodeClass at an API server; the calls to AWS, and the controllers with them, over HTTP to a stand-in for AWS.

mod admission;
mod cluster;
mod ec2;
mod node_class;
