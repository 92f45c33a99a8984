//! The macros that declare the ABI. Each declares types, asserts their layout at compile time, and
//! generates a table for [`crate::layout`], by which tests compare them with the kernel's headers.

/// Declares `repr(C)` structs, asserting size and every field offset.
///
/// `@16 start: u64` is a field at byte 16. `as "path"` names the C field where it differs; an empty
/// path marks a field without a C counterpart (padding that C leaves implicit). [`field_doc`] has
/// the text of fields that many structs share.
macro_rules! abi_structs {
    ($(
        $(#[$meta:meta])*
        struct $name:ident = $c_name:literal, $size:literal {
            $( $(#[$field_meta:meta])* @$offset:literal $field:ident: $ty:ty $(as $c_path:literal)?, )*
        }
    )*) => {
        $(
            $(#[$meta])*
            ///
            #[doc = concat!("`", $c_name, "`, ", $size, " bytes.")]
            #[derive(
                Clone, Copy, Debug, PartialEq, Eq,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
            )]
            #[repr(C)]
            pub struct $name {
                $(
                    $(#[$field_meta])*
                    #[doc = crate::macros::field_doc!([$($field_meta)*] $field)]
                    #[doc = concat!("(At byte ", $offset, ".)")]
                    pub $field: $ty,
                )*
            }

            const _: () = {
                assert!(size_of::<$name>() == $size);
                $( assert!(core::mem::offset_of!($name, $field) == $offset); )*
            };

            impl Default for $name {
                /// All bytes zero.
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }

            impl crate::layout::Described for $name {
                const LAYOUT: crate::layout::Struct = crate::layout::Struct {
                    name: stringify!($name),
                    c_name: $c_name,
                    size: $size,
                    fields: &[$( crate::layout::Field {
                        name: stringify!($field),
                        c_path: crate::macros::or_default!($($c_path)?, stringify!($field)),
                        offset: $offset,
                        size: size_of::<$ty>(),
                    }, )*],
                };
            }
        )*

        pub(crate) const STRUCTS: &[crate::layout::Struct] =
            &[$( <$name as crate::layout::Described>::LAYOUT, )*];
    };
}

/// The default documentation of a field, for names that mean the same in every struct.
#[rustfmt::skip]
macro_rules! field_doc {
    ([] reserved) => { "Zero." };
    ([] reserved0) => { "Zero." };
    ([] reserved1) => { "Zero." };
    ([] reserved2) => { "Zero." };
    ([] response) => { "Where the answer of `write(2)` goes; zero through the ioctl." };
    ([] comp_mask) => { "Which optional fields are valid." };
    ([] response_length) => { "Bytes of the answer that the kernel filled in." };
    ([] id) => { "The id." };
    ([] user_handle) => { "A value of the user's choice, returned in events." };
    ([] pd_handle) => { "Handle of the protection domain." };
    ([] mr_handle) => { "Handle of the memory region." };
    ([] cq_handle) => { "Handle of the completion queue." };
    ([] qp_handle) => { "Handle of the queue pair." };
    ([] srq_handle) => { "Handle of the shared receive queue." };
    ([] xrcd_handle) => { "Handle of the XRC domain." };
    ([] wq_handle) => { "Handle of the work queue." };
    ([] port_num) => { "Port, from 1." };
    ([] max_send_wr) => { "Work requests in the send queue." };
    ([] max_recv_wr) => { "Work requests in the receive queue." };
    ([] max_wr) => { "Work requests." };
    ([] max_sge) => { "Entries per request." };
    ([] max_send_sge) => { "Gather entries per send request." };
    ([] max_recv_sge) => { "Scatter entries per receive request." };
    ([] max_inline_data) => { "Bytes of inline data per send request." };
    ([] srq_limit) => { "Raise an event when fewer requests than this remain." };
    ([] sq_sig_all) => { "1: every send request is signaled." };
    ([] buf_addr) => { "Address of the queue's buffer." };
    ([] db_addr) => { "Address of the doorbell record; a naturally aligned pair of big-endian words." };
    ([] supported_qpts) => { "One bit per [`QpType`](crate::enums::QpType)." };
    ([] lkey) => { "Local key." };
    ([] rkey) => { "Remote key." };
    ([] rq_psn) => { "First PSN expected; 24 bits." };
    ([] sq_psn) => { "First PSN sent; 24 bits." };
    ([] dest_qp_num) => { "The peer's queue pair number." };
    ([] max_rd_atomic) => { "RDMA reads and atomics in flight as initiator." };
    ([] max_dest_rd_atomic) => { "RDMA reads and atomics in flight as responder." };
    ([] min_rnr_timer) => { "Delay that RNR NAKs ask for, as a code of 5 bits." };
    ([] timeout) => { "ACK timeout: 4.096 us << n, 0 for none; 5 bits." };
    ([] retry_cnt) => { "Retries after a timeout; 3 bits." };
    ([] rnr_retry) => { "Retries after RNR, 7 for ever; 3 bits." };
    ([] alt_timeout) => { "As `timeout`, for the alternate path." };
    ([] flow_label) => { "20 bits." };
    ([$($own:meta)*] $field:ident) => { "" };
}

/// Declares a newtype of a number. `Debug` shows the type's name around the output of `Display`.
macro_rules! abi_newtype {
    ($(#[$meta:meta])* $name:ident: $repr:ty) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    };
}

/// Declares open enums: newtypes that also represent unknown values.
macro_rules! abi_enums {
    ($(
        $(#[$meta:meta])*
        enum $name:ident: $repr:ty {
            $( $(#[$value_meta:meta])* $value:ident = $number:literal $c_name:tt, )*
        }
    )*) => {
        $(
            crate::macros::abi_newtype! { $(#[$meta])* $name: $repr }

            impl $name {
                $(
                    $(#[$value_meta])*
                    #[doc = crate::macros::c_doc!($c_name)]
                    pub const $value: Self = Self($number);
                )*

                /// The name of the value, if it is a known one.
                pub const fn name(self) -> Option<&'static str> {
                    match self {
                        $( Self::$value => Some(stringify!($value)), )*
                        _ => None,
                    }
                }
            }

            crate::macros::display_by_name!($name);
        )*

        pub(crate) const CONSTANTS: &[crate::layout::Constant] = &[$($( crate::layout::Constant {
            c_name: crate::macros::c_name!($c_name),
            value: $number,
        }, )*)*];
    };
}

/// Declares sets of flags; unknown bits are preserved.
macro_rules! abi_flags {
    ($(
        $(#[$meta:meta])*
        flags $name:ident: $repr:ty {
            $( $(#[$value_meta:ident $($value_args:tt)*])* $value:ident = $bits:expr => $c_name:tt, )*
        }
    )*) => {
        $(
            crate::macros::abi_newtype! { $(#[$meta])* $name: $repr }

            bitflags::bitflags! {
                impl $name: $repr {
                    $(
                        $(#[$value_meta $($value_args)*])*
                        #[doc = crate::macros::c_doc!($c_name)]
                        const $value = $bits;
                    )*
                }
            }

            impl core::fmt::Display for $name {
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    bitflags::parser::to_writer(self, f)
                }
            }
        )*

        pub(crate) const CONSTANTS: &[crate::layout::Constant] = &[$($( crate::layout::Constant {
            c_name: crate::macros::c_name!($c_name),
            value: $bits,
        }, )*)*];
    };
}

/// Declares plain constants.
macro_rules! abi_constants {
    ($( $(#[$meta:meta])* $name:ident: $ty:ty = $value:literal $c_name:ident, )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("`", stringify!($c_name), "`")]
            pub const $name: $ty = $value;
        )*

        pub(crate) const CONSTANTS: &[crate::layout::Constant] = &[$( crate::layout::Constant {
            c_name: stringify!($c_name),
            value: $value,
        }, )*];
    };
}

/// Display of a newtype with a `name`.
macro_rules! display_by_name {
    ($name:ident) => {
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, "{:#x}", self.0),
                }
            }
        }
    };
}

/// The C name of a constant, or a C expression; `_` if no exported header has it, so that it is not
/// compared.
macro_rules! c_name {
    (_) => {
        ""
    };
    ($c_name:ident) => {
        stringify!($c_name)
    };
    ($expression:literal) => {
        $expression
    };
}

/// Documentation line of a constant.
macro_rules! c_doc {
    (_) => {
        "(In no exported header.)"
    };
    ($c_name:ident) => {
        concat!("`", stringify!($c_name), "`")
    };
    ($expression:literal) => {
        concat!("`", $expression, "`")
    };
}

/// The first literal if there is one, else the default.
macro_rules! or_default {
    (, $default:expr) => {
        $default
    };
    ($given:literal, $default:expr) => {
        $given
    };
}

pub(crate) use {
    abi_constants, abi_enums, abi_flags, abi_newtype, abi_structs, c_doc, c_name, display_by_name,
    field_doc, or_default,
};
