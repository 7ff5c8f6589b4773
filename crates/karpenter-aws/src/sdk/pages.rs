//! Listings of several pages.

use aws_sdk_ec2::operation as ec2;
use aws_sdk_iam::operation::list_instance_profiles::ListInstanceProfilesOutput;
use aws_sdk_pricing::operation::get_products::GetProductsOutput;

use super::AwsError;

/// One page of a listing.
pub trait Page {
    /// Returns the token of the next page; `None` on the last.
    fn next(&self) -> Option<&str>;
}

macro_rules! pages {
    ($($page:ty,)*) => {
        $(impl Page for $page {
            fn next(&self) -> Option<&str> {
                self.next_token()
            }
        })*
    };
}

pages! {
    ec2::describe_capacity_reservations::DescribeCapacityReservationsOutput,
    ec2::describe_images::DescribeImagesOutput,
    ec2::describe_instance_status::DescribeInstanceStatusOutput,
    ec2::describe_instance_type_offerings::DescribeInstanceTypeOfferingsOutput,
    ec2::describe_instance_types::DescribeInstanceTypesOutput,
    ec2::describe_instances::DescribeInstancesOutput,
    ec2::describe_launch_templates::DescribeLaunchTemplatesOutput,
    ec2::describe_security_groups::DescribeSecurityGroupsOutput,
    ec2::describe_spot_price_history::DescribeSpotPriceHistoryOutput,
    ec2::describe_subnets::DescribeSubnetsOutput,
    GetProductsOutput,
}

impl Page for ListInstanceProfilesOutput {
    fn next(&self) -> Option<&str> {
        self.marker().filter(|_| self.is_truncated())
    }
}

/// Requests page after page, each with the token of the one before, and passes them on as they arrive.
///
/// # Errors
/// The error of the first call that fails.
pub async fn each_page<P: Page, F>(
    ask: impl Fn(Option<String>) -> F,
    mut take: impl FnMut(P),
) -> Result<(), AwsError>
where
    F: Future<Output = Result<P, AwsError>>,
{
    let mut token = None;
    loop {
        let page = ask(token).await?;
        // Some services end with an empty token.
        token = page.next().filter(|t| !t.is_empty()).map(str::to_owned);
        take(page);
        if token.is_none() {
            return Ok(());
        }
    }
}
