//! Checks names that users see. Public signatures of the library contain no types of the kernel's
//! ABI, of `nix` or of the software device, unless the library exports them. And a search of the
//! documentation for any C function of docs/from-libibverbs.md finds its counterpart.

#[path = "common/sources.rs"]
mod sources;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const INNER: &[&str] = &["uverbs_uapi::", "nix::", "uverbs_soft::"];

#[test]
fn public_signatures_name_the_librarys_own_types() {
    let sources: Vec<_> =
        sources::files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &["rs"])
            .into_iter()
            .map(|file| (code(&fs::read_to_string(&file).expect("UTF-8")), file))
            .collect();
    let offered: BTreeSet<_> =
        sources.iter().flat_map(|(text, _)| imports(text, "pub use ")).collect();
    let found: Vec<_> = sources
        .iter()
        .flat_map(|(text, file)| {
            leaks(text, &offered).into_iter().map(move |leak| format!("{file:?}: {leak}"))
        })
        .collect();
    assert!(found.is_empty(), "{} signatures\n{}", found.len(), found.join("\n"));
}

#[test]
fn each_c_function_is_a_doc_alias_of_its_counterpart() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = code_with_aliases(root);
    let page = fs::read_to_string(root.join("docs/from-libibverbs.md")).expect("a page");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let names: BTreeSet<_> = cells
        .flat_map(|cell| cell.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|name| name.starts_with("ibv_") || name.starts_with("rdma_"))
        .filter(|name| !name.ends_with('_'))
        .collect();
    assert!(names.len() > 100, "{} names", names.len());
    // A macro takes the names of `destroy` as its first argument.
    let finds = |name: &&str| {
        text.contains(&format!("alias = \"{name}\""))
            || text.contains(&format!("    \"{name}\",\n"))
    };
    let missing: Vec<_> = names.into_iter().filter(|name| !finds(name)).collect();
    assert!(missing.is_empty(), "no #[doc(alias)] for {missing:?}");
}

/// Functions of one kind have that part of their names in common, and one of them is on the page.
#[test]
fn each_export_of_libibverbs_is_found() {
    const KINDS: [(&str, &str); 7] = [
        ("ibv_cmd_", "ibv_cmd_*"),
        ("ibv_copy_", "ibv_copy_*"),
        ("ibv_rate_to_", "ibv_rate_to_mbps"),
        ("comp_cntr", "ibv_create_comp_cntr"),
        ("dmah", "ibv_alloc_dmah"),
        ("_buf", "ibv_alloc_buf"),
        ("sysfs", "ibv_read_sysfs_file"),
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/from-libibverbs.md")).expect("a page");
    for (_, one) in KINDS {
        assert!(page.contains(&format!("`{one}`")), "{one}");
    }
    let known = page + &code_with_aliases(root);
    let list = fs::read_to_string(root.join("capi/exports/rdma-core-65.txt")).expect("a list");
    let public = list.lines().filter(|line| !line.contains("PRIVATE"));
    let names: BTreeSet<_> = public.filter_map(|line| line.split('@').next()).collect();
    assert!(names.len() > 90, "{} names", names.len());
    let has =
        |name: &str| known.contains(&format!("`{name}`")) || known.contains(&format!("\"{name}\""));
    let missing: Vec<_> = names
        .into_iter()
        .filter(|name| name.starts_with("ibv_"))
        .filter(|name| !has(name) && !KINDS.iter().any(|(part, _)| name.contains(part)))
        .collect();
    assert!(missing.is_empty(), "not in docs/from-libibverbs.md: {missing:?}");
}

fn code_with_aliases(root: &Path) -> String {
    let mut sources = sources::files(&root.join("src"), &["rs"]);
    sources.extend(sources::files(&root.join("provider-mlx5/src"), &["rs"]));
    sources.iter().map(|file| fs::read_to_string(file).expect("UTF-8")).collect()
}

#[test]
fn the_check_finds_what_it_is_for() {
    let leaks = |text: &str| leaks(text, &BTreeSet::from(["Offered".to_owned()])).len();
    let import = "use uverbs_uapi::a::{Inner, Offered};\n";
    assert_eq!(leaks(&format!("{import}pub fn a(b: Inner) {{\n")), 1);
    assert_eq!(leaks(&format!("{import}pub fn a(\n    b: u8,\n) -> Option<Inner> {{\n")), 1);
    assert_eq!(leaks(&format!("{import}    pub field: Inner,\n")), 1);
    assert_eq!(leaks("pub fn a(b: nix::Errno) {\n"), 1);
    assert_eq!(leaks(&format!("{import}pub fn a(b: Offered) {{\n    Inner::new()\n}}\n")), 0);
    assert_eq!(leaks(&format!("{import}pub(crate) fn a(b: Inner) {{\n")), 0);
    assert_eq!(leaks(&format!("{import}#[doc(hidden)]\npub fn a(b: Inner) {{\n")), 0);
    assert_eq!(leaks(&format!("{import}pub fn a() {{}}\n#[doc(hidden)]\npub b: Inner,\n")), 0);
}

/// Public signatures of `text`, except hidden ones, that name an inner type.
fn leaks(text: &str, offered: &BTreeSet<String>) -> Vec<String> {
    let mut inner = imports(text, "use ");
    inner.retain(|name| !offered.contains(name));
    let mut found = signatures(text);
    found.retain(|signature| {
        let mut words = signature.split(|c: char| !c.is_alphanumeric() && c != '_');
        let mut paths = signature.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        words.any(|word| inner.contains(word))
            || paths.any(|path| is_inner(path) && !offered.contains(&name_of(path)))
    });
    found
}

/// Names of the inner crates' types in declarations that begin with `keyword`.
fn imports(text: &str, keyword: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for declaration in format!("\n{text}").split(';') {
        let Some((_, path)) = declaration.rsplit_once(&format!("\n{keyword}")) else { continue };
        if is_inner(path) {
            names.extend(path.split([',', '{', '}']).map(name_of));
        }
    }
    names.retain(|name| name.starts_with(char::is_uppercase));
    names
}

fn is_inner(path: &str) -> bool {
    INNER.iter().any(|inner| path.starts_with(inner))
}

/// The name that the end of a path has in this file.
fn name_of(path: &str) -> String {
    let end = path.rsplit_once(" as ").or_else(|| path.rsplit_once("::"));
    end.map_or(path, |(_, name)| name).trim().to_owned()
}

/// Public functions, up to their body, and public fields.
fn signatures(text: &str) -> Vec<String> {
    let (mut found, mut hidden) = (Vec::new(), false);
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line.starts_with("pub ") && !line.starts_with("pub use") {
            let mut signature = line.to_owned();
            let is_field = !signature.contains("fn ");
            while !(signature.ends_with(['{', ';', '}']) || is_field && signature.ends_with(',')) {
                let Some(more) = lines.next() else { break };
                signature.push_str(more);
            }
            if !hidden {
                found.push(signature);
            }
        }
        hidden = line == "#[doc(hidden)]" || hidden && line.starts_with("#[");
    }
    found
}

/// The text without comments and without the tests at its end.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    lines.flat_map(|line| ["\n", line]).collect()
}
