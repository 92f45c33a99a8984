//! Copies fields by name between structs of C, of the kernel and of the library.

/// A struct whose fields of these names are those of `$from`, some of them as C's `int`; all other
/// fields are written out.
macro_rules! with_fields_of {
    ($from:ident: $($same:ident)*; as c_int: $($int:ident)*; $type:ident { $($other:tt)* }) => {
        $type {
            $($same: $from.$same,)*
            $($int: $from.$int as ::std::ffi::c_int,)*
            $($other)*
        }
    };
    ($from:ident: $($same:ident)*; $($rest:tt)*) => {
        with_fields_of! { $from: $($same)*; as c_int: ; $($rest)* }
    };
}
pub(crate) use with_fields_of;

/// Copies the fields of these names, and leaves the others unchanged.
macro_rules! copy_fields {
    ($from:ident => $to:ident: $($same:ident)*) => {
        $($to.$same = $from.$same;)*
    };
}
pub(crate) use copy_fields;
