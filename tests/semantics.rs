//! Every rule of docs/semantics.md names its tests, and they exist.

#[path = "common/sources.rs"]
mod sources;

use std::fs;
use std::path::Path;

/// The text of all sources that have tests.
fn texts(root: &Path) -> String {
    let folders = [
        "tests",
        "src",
        "provider-mlx5/tests",
        "provider-mlx5/inspect/tests",
        "provider-mlx5/src",
        "soft-mlx5/adapter/src",
        "soft-mlx5/src",
    ];
    let all = folders.iter().flat_map(|folder| sources::files(&root.join(folder), &["rs"]));
    all.map(|path| fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn every_rule_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (rules, code) = (fs::read_to_string(root.join("docs/semantics.md")).unwrap(), texts(root));
    let numbered = |line: &&str| {
        ["| P", "| Q", "| E", "| T", "| F", "| S", "| C", "| D"]
            .iter()
            .any(|is| line.starts_with(is))
    };
    let rows = rules.lines().filter(numbered);
    let mut count = 0;
    for row in rows {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let names: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "nothing shows {row}");
        for name in names {
            assert!(code.contains(&format!("fn {name}() {{")), "no test {name}, of {row}");
        }
        count += 1;
    }
    assert_eq!(count, 16 + 6 + 7 + 26 + 35 + 9 + 13 + 7);
}
