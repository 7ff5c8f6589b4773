//! Nothing: the walkthroughs are tests, see `tests/walkthroughs/main.rs`. They are a package of their own because they run the binary
//! of the controller as it is, and so need not be built with the AWS SDK.
