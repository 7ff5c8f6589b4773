//! Methods `with_…` of requests and of what describes a provider.

/// Defines methods that set a field and return the value; `= …` says what the field gets, instead of the argument.
macro_rules! setters {
    ($($(#[$doc:meta])* $method:ident($field:ident: $type:ty) $(= $value:expr)?;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $method(mut self, $field: $type) -> Self {
            self.$field = setters!(@value $field $($value)?);
            self
        }
    )*};
    (@value $field:ident) => { $field };
    (@value $field:ident $value:expr) => { $value };
}

pub(crate) use setters;
