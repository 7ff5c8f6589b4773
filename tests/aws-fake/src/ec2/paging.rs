//! Paging: every list call returns small pages, so that clients must follow the tokens.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// Start and size of a page.
#[derive(Debug)]
pub(crate) struct Page {
    size: usize,
    after: Option<String>,
    action: String,
    /// The first page is empty, and the elements begin on the next.
    empty_first: bool,
}

impl Page {
    /// Parses `MaxResults` and `NextToken`. `bounds` are EC2's for this call, `cap` is the stand-in's own page size.
    pub(crate) fn read(
        params: Params<'_>,
        action: &str,
        bounds: (i64, i64),
        cap: usize,
    ) -> Result<Self, AwsError> {
        let asked = match params.int("MaxResults") {
            None | Some(0) => bounds.1,
            Some(n) if n < bounds.0 => {
                return Err(AwsError::invalid_value(format!(
                    "Value ( {n} ) for parameter maxResults is invalid. Expecting a value greater than {}.",
                    bounds.0
                )));
            }
            Some(n) if n > bounds.1 => {
                return Err(AwsError::invalid_value(format!(
                    "Value ( {n} ) for parameter maxResults is invalid. Expecting a value less than {}.",
                    bounds.1
                )));
            }
            Some(n) => n,
        };
        let after = match params.text("NextToken").filter(|t| !t.is_empty()) {
            None => None,
            Some(token) => Some(open(token, action).ok_or_else(|| {
                AwsError::new("InvalidNextToken", "The specified NextToken is not valid.")
            })?),
        };
        Ok(Self {
            size: usize::try_from(asked).unwrap_or(1).min(cap).max(1),
            after,
            action: action.to_owned(),
            empty_first: false,
        })
    }

    /// Makes the first page empty, as EC2 does if none of the first elements matches the filters.
    pub(crate) fn empty_first(mut self, empty: bool) -> Self {
        self.empty_first = empty;
        self
    }

    /// Returns the key of the last element of the previous page.
    pub(crate) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the token of the page after the one that ends with `key`.
    pub(crate) fn token(&self, key: &str) -> String {
        seal(key, &self.action)
    }

    /// Returns this page of `elements`, which are sorted by key, and the next page's token.
    pub(crate) fn cut<T>(
        &self,
        elements: impl IntoIterator<Item = (String, T)>,
    ) -> (Vec<T>, Option<String>) {
        if self.empty_first && self.after.is_none() {
            return (Vec::new(), Some(self.token("")));
        }
        let mut rest = elements
            .into_iter()
            .skip_while(|(key, _)| self.after.as_ref().is_some_and(|after| key <= after))
            .peekable();
        let mut page = Vec::new();
        let mut last = String::new();
        while page.len() < self.size {
            let Some((key, element)) = rest.next() else {
                break;
            };
            last = key;
            page.push(element);
        }
        let token = rest.peek().is_some().then(|| self.token(&last));
        (page, token)
    }
}

/// Returns an opaque token that is valid for the same action only.
pub(crate) fn seal(key: &str, action: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{action}\n{key}"))
}

/// Returns the key inside a token of [`seal`].
pub(crate) fn open(token: &str, action: &str) -> Option<String> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (of, key) = text.split_once('\n')?;
    (of == action).then(|| key.to_owned())
}
