//! Listings of several pages.
//!
//! The SDK's paginators are not used: they make the calls themselves, without the pacing, retries and metrics of
//! [`Aws`](super::Aws), and end at the first error, so that one throttled page would start the whole listing again.

use aws_sdk_ec2::operation as ec2;
use aws_sdk_iam::operation::list_instance_profiles::ListInstanceProfilesOutput;
use aws_sdk_pricing::operation::get_products::GetProductsOutput;

use super::AwsError;

/// One page of a listing.
pub trait Page {
    const OPERATION: &'static str;

    /// Returns the token of the next page; `None` on the last.
    fn next(&self) -> Option<&str>;
}

macro_rules! pages {
    ($($page:ty, $operation:literal;)*) => {
        $(impl Page for $page {
            const OPERATION: &'static str = $operation;

            fn next(&self) -> Option<&str> {
                self.next_token()
            }
        })*
    };
}

pages! {
    ec2::describe_capacity_reservations::DescribeCapacityReservationsOutput, "DescribeCapacityReservations";
    ec2::describe_images::DescribeImagesOutput, "DescribeImages";
    ec2::describe_instance_status::DescribeInstanceStatusOutput, "DescribeInstanceStatus";
    ec2::describe_instance_type_offerings::DescribeInstanceTypeOfferingsOutput, "DescribeInstanceTypeOfferings";
    ec2::describe_instance_types::DescribeInstanceTypesOutput, "DescribeInstanceTypes";
    ec2::describe_instances::DescribeInstancesOutput, "DescribeInstances";
    ec2::describe_launch_templates::DescribeLaunchTemplatesOutput, "DescribeLaunchTemplates";
    ec2::describe_security_groups::DescribeSecurityGroupsOutput, "DescribeSecurityGroups";
    ec2::describe_spot_price_history::DescribeSpotPriceHistoryOutput, "DescribeSpotPriceHistory";
    ec2::describe_subnets::DescribeSubnetsOutput, "DescribeSubnets";
    GetProductsOutput, "GetProducts";
}

impl Page for ListInstanceProfilesOutput {
    const OPERATION: &'static str = "ListInstanceProfiles";

    fn next(&self) -> Option<&str> {
        self.marker().filter(|_| self.is_truncated())
    }
}

/// Requests page after page, each with the token of the one before, and passes them on as they arrive.
///
/// # Errors
/// The error of the first call that fails; an error if a page has the token that it was requested with, which would
/// repeat it forever.
pub async fn each_page<P: Page, F>(
    ask: impl Fn(Option<String>) -> F,
    mut take: impl FnMut(P),
) -> Result<(), AwsError>
where
    F: Future<Output = Result<P, AwsError>>,
{
    let mut token = None;
    loop {
        let page = ask(token.clone()).await?;
        // Some services end with an empty token.
        let next = page.next().filter(|t| !t.is_empty()).map(str::to_owned);
        if next.is_some() && next == token {
            // The pages so far must not be taken for a whole listing: instances that are missing in it count as
            // terminated.
            let message = "the next page has the token of this page";
            return Err(AwsError::unreadable(P::OPERATION, message));
        }
        take(page);
        if next.is_none() {
            return Ok(());
        }
        token = next;
    }
}

/// Requests all pages and returns what `read` takes from them.
///
/// # Errors
/// As [`each_page`].
pub async fn list_all<P: Page, F, I: IntoIterator>(
    ask: impl Fn(Option<String>) -> F,
    read: impl Fn(P) -> I,
) -> Result<Vec<I::Item>, AwsError>
where
    F: Future<Output = Result<P, AwsError>>,
{
    let mut found = Vec::new();
    each_page(ask, |page| found.extend(read(page))).await?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page with the token of the next.
    struct Numbered(&'static str);

    impl Page for Numbered {
        const OPERATION: &'static str = "DescribeNumbers";

        fn next(&self) -> Option<&str> {
            Some(self.0)
        }
    }

    /// Requests pages whose tokens are these, and returns the pages that were taken.
    async fn list(tokens: &[&'static str]) -> (Vec<&'static str>, Result<(), AwsError>) {
        let (mut taken, asked) = (Vec::new(), std::cell::RefCell::new(Vec::new()));
        let ask = |token: Option<String>| {
            let index = asked.borrow().len();
            asked.borrow_mut().push(token.unwrap_or_default());
            let page = tokens.get(index).copied().map(Numbered);
            let lost = AwsError::unreadable("DescribeNumbers", "no answer");
            async move { page.ok_or(lost) }
        };
        let result = each_page(ask, |page: Numbered| taken.push(page.0)).await;
        let asked = asked.into_inner();
        assert!(
            asked.iter().skip(1).eq(tokens.iter().take(asked.len() - 1)),
            "each page is requested with the token of the one before: {asked:?}"
        );
        (taken, result)
    }

    #[tokio::test]
    async fn a_listing_ends_with_an_empty_token() {
        let (taken, result) = list(&["a", "b", ""]).await;
        assert_eq!(taken, ["a", "b", ""]);
        assert!(result.is_ok());
    }

    #[tokio::test]
    async fn a_page_that_fails_ends_the_listing() {
        let (taken, result) = list(&["a", "b"]).await;
        assert_eq!(taken, ["a", "b"]);
        assert_eq!(result.unwrap_err().message, "no answer");
    }

    #[tokio::test]
    async fn a_repeated_token_is_an_error_instead_of_an_endless_listing() {
        let (taken, result) = list(&["a", "b", "b", ""]).await;
        assert_eq!(taken, ["a", "b"]);
        let error = result.unwrap_err();
        assert_eq!(error.operation, "DescribeNumbers");
        assert_eq!(error.message, "the next page has the token of this page");
    }
}
