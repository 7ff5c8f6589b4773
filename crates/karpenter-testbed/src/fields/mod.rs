//! Who owns which field: managed fields and server-side apply.
