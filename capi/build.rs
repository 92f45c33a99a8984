//! Makes the linker's version script and the exported symbols out of `exports.txt`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

const TABLE: &str = "exports.txt";

/// What the standard library takes from libgcc_s: the names behind `_Unwind_`.
const UNWINDER: [&str; 14] = [
    "Backtrace",
    "DeleteException",
    "FindEnclosingFunction",
    "GetCFA",
    "GetDataRelBase",
    "GetIP",
    "GetIPInfo",
    "GetLanguageSpecificData",
    "GetRegionStart",
    "GetTextRelBase",
    "RaiseException",
    "Resume",
    "SetGR",
    "SetIP",
];

/// A line of the table.
struct Export<'a> {
    version: &'a str,
    name: &'a str,
    /// A path in the crate.
    function: &'a str,
    /// Whether programs that ask for no version get this one.
    default: bool,
}

fn main() {
    println!("cargo::rerun-if-changed={TABLE}");
    let text = fs::read_to_string(TABLE).expect("the table of exports");
    let exports: Vec<_> = text.lines().filter_map(export).collect();
    let directory = env::var("OUT_DIR").expect("set by cargo");
    let map = Path::new(&directory).join("libibverbs.map");
    fs::write(&map, script(&exports)).expect("writable output");
    fs::write(Path::new(&directory).join("symbols.rs"), symbols(&exports))
        .expect("writable output");
    fs::write(Path::new(&directory).join("addresses.rs"), addresses(&exports))
        .expect("writable output");
    println!("cargo::rustc-link-arg-cdylib=-Wl,--version-script={}", map.display());
    println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,libibverbs.so.1");
    // Threads of the software device, and programs' atexit functions, may run after dlclose.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    use_our_unwinder();
}

/// Makes the standard library call `src/unwinder.rs` where it would call libgcc_s. A linker that
/// links for another C library than this machine's (zig's) brings an unwinder of its own.
fn use_our_unwinder() {
    let linker = env::var("RUSTC_LINKER").unwrap_or_default();
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") || linker.contains("zig") {
        return;
    }
    for name in UNWINDER {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--defsym=_Unwind_{name}=uverbs_Unwind_{name}");
    }
}

/// `VERSION NAME FUNCTION`, where NAME may end in `!`: not the default version. Everything after
/// `#` is a comment.
fn export(line: &str) -> Option<Export<'_>> {
    let mut words = line.split('#').next()?.split_whitespace();
    let (version, name, function) = (words.next()?, words.next()?, words.next()?);
    let default = !name.ends_with('!');
    Some(Export { version, name: name.trim_end_matches('!'), function, default })
}

fn script(exports: &[Export<'_>]) -> String {
    let mut nodes: BTreeMap<Order, (&str, Vec<&str>)> = BTreeMap::new();
    for export in exports {
        nodes
            .entry(order(export.version))
            .or_insert((export.version, Vec::new()))
            .1
            .push(export.name);
    }
    let mut text = String::new();
    for (version, names) in nodes.into_values() {
        let _ = writeln!(text, "{version} {{\n\tglobal:");
        for name in names {
            let _ = writeln!(text, "\t\t{name};");
        }
        let _ =
            writeln!(text, "{}}};", if version == "IBVERBS_1.0" { "\tlocal: *;\n" } else { "" });
    }
    text
}

/// The sort key of a version: public before private, libibverbs' before libmlx5's, then by number.
type Order = (bool, bool, Vec<u32>);

fn order(version: &str) -> Order {
    let is_mlx5 = version.starts_with("MLX5");
    let (_, number) = version.rsplit_once('_').expect("NAME_NUMBER");
    let numbers = number.split('.').map(|digits| digits.parse().expect("a version's number"));
    (version.contains("PRIVATE"), is_mlx5, numbers.collect())
}

fn symbols(exports: &[Export<'_>]) -> String {
    let mut text = String::from("use std::arch::global_asm;\n");
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "b",
        _ => "jmp",
    };
    for (place, export) in exports.iter().enumerate() {
        let Export { version, name, function, default } = export;
        let at = if *default { "@@" } else { "@" };
        let _ = writeln!(
            text,
            "global_asm!(\".text\", \".globl __uverbs_{place}\", \".type __uverbs_{place}, @function\", \
             \"__uverbs_{place}: {jump} {{f}}\", \".size __uverbs_{place}, . - __uverbs_{place}\", \
             \".symver __uverbs_{place}, {name}{at}{version}\", f = sym crate::{function});"
        );
    }
    text
}

/// A function that finds an export as `dlvsym` does, for programs that are linked with the crate.
fn addresses(exports: &[Export<'_>]) -> String {
    let mut text = String::from("match (name, version) {\n");
    for Export { version, name, function, .. } in exports {
        let _ = writeln!(text, "(\"{name}\", \"{version}\") => crate::{function} as *const (),");
    }
    text + "_ => return None,\n}\n"
}
