//! Empty: the walkthroughs are tests, see `tests/walkthroughs/main.rs`. They are a separate package because they run the
//! controller's binary as it is, and do not need to be built with the AWS SDK.
