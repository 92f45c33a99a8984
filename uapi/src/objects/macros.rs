//! The macro that declares the tables of objects, methods and attributes.

/// Declares objects: for each object a module with its id, for each method a module with a marker
/// type `Call`, its id and its typed attributes, and the table that [`super::all`] reads.
///
/// `extends path` adds attributes to a method declared elsewhere (a driver's additions).
macro_rules! objects {
    ($(
        $(#[$object_meta:meta])*
        $object:ident = $object_id:literal $object_c:ident { $(
            $(#[$method_meta:meta])*
            $method:ident $(extends $($base:ident)::+)? = $method_id:literal $method_c:ident {
                $( $attr:ident: $need:ident $kind:ident = $attr_id:literal $attr_c:ident, )*
            }
        )* }
    )*) => {
        $(
            $(#[$object_meta])*
            pub mod $object {
                #[doc = concat!("`", stringify!($object_c), "`")]
                pub const OBJECT: $crate::objects::ObjectId =
                    $crate::objects::ObjectId($object_id);
                $(
                    $(#[$method_meta])*
                    pub mod $method {
                        use $crate::objects::{Attr, MethodId, kind};

                        #[doc = concat!("`", stringify!($method_c), "`")]
                        pub const METHOD: MethodId = MethodId($method_id);
                        $crate::objects::macros::call!(
                            [$($($base)::+)?] $object_id $method_id
                            [$($attr $need $kind $attr_id $attr_c)*]
                        );
                        $(
                            #[doc = concat!("`", stringify!($attr_c), "`: ", stringify!($need), ".")]
                            pub const $attr: Attr<Call, kind::$kind> = Attr::new($attr_id);
                        )*
                    }
                )*
            }
        )*

        pub(crate) const OBJECTS: &[$crate::objects::ObjectInfo] = &[$(
            $crate::objects::ObjectInfo {
                id: $crate::objects::ObjectId($object_id),
                name: stringify!($object),
                c_name: stringify!($object_c),
                methods: &[$(
                    $crate::objects::MethodInfo {
                        id: $crate::objects::MethodId($method_id),
                        name: stringify!($method),
                        c_name: stringify!($method_c),
                        attributes: &[$( $crate::objects::macros::attribute!(
                            $attr $need $kind $attr_id $attr_c
                        ), )*],
                    },
                )*],
            },
        )*];
    };
}

/// The marker type of a method, or the one that it extends.
macro_rules! call {
    ([] $object_id:literal $method_id:literal
     [$($attr:ident $need:ident $kind:ident $attr_id:literal $attr_c:ident)*]) => {
        /// The type parameter for this method; it has no values.
        #[derive(Clone, Copy, Debug)]
        pub enum Call {}

        impl $crate::objects::Method for Call {
            const OBJECT: $crate::objects::ObjectId = $crate::objects::ObjectId($object_id);
            const METHOD: MethodId = METHOD;
            const ATTRIBUTES: &'static [$crate::objects::AttrInfo] = &[$(
                $crate::objects::macros::attribute!($attr $need $kind $attr_id $attr_c),
            )*];
        }
    };
    ([$($base:ident)::+] $($rest:tt)*) => {
        pub use $($base)::+::Call;
    };
}

/// One row of the attribute table.
macro_rules! attribute {
    ($attr:ident $need:ident $kind:ident $attr_id:literal $attr_c:ident) => {
        $crate::objects::AttrInfo {
            id: $crate::objects::AttrId($attr_id),
            name: stringify!($attr),
            c_name: stringify!($attr_c),
            kind: $crate::objects::AttrKind::$kind,
            required: $crate::objects::macros::required!($need),
        }
    };
}

/// Whether the kernel refuses the method without the attribute.
macro_rules! required {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}

pub(crate) use {attribute, call, objects, required};
