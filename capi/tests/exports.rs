//! The exported names and versions are those of rdma-core 44 and 65, of libibverbs and libmlx5.
//!
//! The lists in `exports/` are what `nm -D --defined-only` prints for the two releases' libraries.
//! The default version of a name of libibverbs' own providers is that of rdma-core 44 here, so `@`
//! and `@@` are not told apart there.

mod library;

use std::collections::BTreeSet;
use std::process::Command;

/// libibverbs' names, and libmlx5's, which the same file has.
const LISTS: [&str; 4] = [
    include_str!("../exports/rdma-core-44.txt"),
    include_str!("../exports/rdma-core-65.txt"),
    include_str!("../exports/rdma-core-44-mlx5.txt"),
    include_str!("../exports/rdma-core-65-mlx5.txt"),
];

fn exported() -> Option<BTreeSet<String>> {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library::path()).output().ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    Some(names.map(str::to_owned).collect())
}

fn listed(text: &str) -> BTreeSet<String> {
    let names = text.lines().map(str::trim).filter(|line| line.contains('@'));
    names.map(str::to_owned).collect()
}

/// Private names without the mark of the default version.
fn plain(name: &str) -> String {
    if name.contains("PRIVATE") { name.replace("@@", "@") } else { name.to_owned() }
}

#[test]
fn names_and_versions_are_those_of_rdma_core() {
    let Some(exported) = exported() else { return library::skip("no nm (binutils)") };
    let ours: BTreeSet<_> = exported.iter().map(|name| plain(name)).collect();
    assert!(ours.iter().all(|name| name.contains('@')), "a name without a version");
    for text in LISTS {
        let missing: Vec<_> =
            listed(text).into_iter().filter(|name| !ours.contains(&plain(name))).collect();
        assert!(missing.is_empty(), "not exported: {missing:?}");
    }
}

#[test]
fn only_the_expected_public_names_are_exported() {
    let Some(exported) = exported() else { return library::skip("no nm (binutils)") };
    let known: BTreeSet<_> = LISTS.into_iter().flat_map(listed).collect();
    let public = exported.iter().filter(|name| !name.contains("PRIVATE"));
    let foreign: Vec<_> = public.filter(|name| !known.contains(*name)).collect();
    assert!(foreign.is_empty(), "exported and not of rdma-core: {foreign:?}");
}

/// `libibverbs.so.1` is found by the name that programs were linked with.
#[test]
fn the_library_needs_only_the_c_library() {
    let output = Command::new("readelf").args(["-d"]).arg(library::path()).output();
    let Ok(output) = output else { return library::skip("no readelf (binutils)") };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("[libibverbs.so.1]"), "{text}");
    let needed = text.lines().filter(|line| line.contains("(NEEDED)"));
    // Some linkers keep libm, a part of glibc, for code that an unoptimized build never calls.
    let known = ["libc.so", "libm.so", "ld-linux"];
    let foreign: Vec<_> =
        needed.filter(|line| !known.iter().any(|known| line.contains(known))).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
