//! Compares sizes, offsets and constants with the C headers, using a C compiler.
//!
//! The headers are `infiniband/mlx5dv.h` (Debian: libibverbs-dev) and, for kernel definitions,
//! `include/linux/mlx5/{qp,device}.h` (Debian: linux-headers-amd64). The kernel's headers do not
//! compile outside of the kernel, so the test extracts single structures from them.
//!
//! Without a compiler or a header a test prints this and passes; with `CI` set it fails.

mod compiler;
mod device_header;
mod kernel_header;

/// A number of this crate, and the C expression that must have the same value.
struct Row {
    name: &'static str,
    ours: u64,
    c: &'static str,
}

/// Rows for a structure: its size and the offsets of the fields, each with the C field's name.
macro_rules! structure {
    ($ours:ident = $c:literal { $($field:ident = $c_field:literal),* $(,)? }) => {
        vec![
            crate::Row {
                name: stringify!($ours),
                ours: size_of::<uverbs_mlx5_format::$ours>() as u64,
                c: concat!("sizeof(struct ", $c, ")"),
            },
            $(crate::Row {
                name: concat!(stringify!($ours), ".", stringify!($field)),
                ours: core::mem::offset_of!(uverbs_mlx5_format::$ours, $field) as u64,
                c: concat!("offsetof(struct ", $c, ", ", $c_field, ")"),
            },)*
        ]
    };
}

/// Rows for constants.
macro_rules! constants {
    ($($ours:expr => $c:literal),* $(,)?) => {
        vec![$(crate::Row { name: stringify!($ours), ours: ($ours) as u64, c: $c }),*]
    };
}

use {constants, structure};

/// Compiles a program that prints every row's C value, and compares.
fn compare(prelude: &str, rows: &[Row]) {
    let values = compiler::values(prelude, rows.iter().map(|row| row.c));
    let Some(values) = values else { return };
    assert_eq!(values.len(), rows.len(), "one value per row");
    let wrong: Vec<String> = rows
        .iter()
        .zip(&values)
        .filter(|(row, value)| row.ours != **value)
        .map(|(row, value)| format!("{} is {}, {} is {value}", row.name, row.ours, row.c))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn values_without_a_name_are_shown_as_numbers() {
    use uverbs_mlx5_format::VendorSyndrome;
    assert_eq!(format!("{:?}", VendorSyndrome(0x93)), "VendorSyndrome(ODP_PFAULT)");
    assert_eq!(format!("{:?}", VendorSyndrome(0x81)), "VendorSyndrome(0x81)");
}
