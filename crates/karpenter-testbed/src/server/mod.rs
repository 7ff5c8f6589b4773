//! What happens to a request: verbs, admission, subresources, custom resources, HTTP.
