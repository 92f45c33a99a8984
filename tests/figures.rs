//! The figures in README and docs are those that the benchmarks counted.

use std::path::Path;

#[path = "../xtask/src/figures.rs"]
mod figures;

#[test]
fn readme_and_docs_have_the_benchmarks_figures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let counts = figures::Counts::read(root).expect("the benchmarks' files");
    for (name, before, after) in counts.files(root).expect("README and docs") {
        let changed = before.lines().zip(after.lines()).find(|(before, after)| before != after);
        assert!(before == after, "`cargo xtask figures` mends {name}: {changed:#?}");
        assert!(!after.contains("no `"), "{name} has a figure that no benchmark counted");
    }
}

#[test]
fn tables_and_figures_have_not_lost_their_marks() {
    let docs = |name| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
    let text = docs("docs/vs-libmlx5.md").expect("docs");
    assert_eq!(text.matches("<!-- cargo xtask figures: ").count(), 2);
    let sends = docs("README.md").expect("README.md");
    assert!(sends.contains("<!-- send_sge -->") && sends.contains("<!-- libmlx5 send_sge -->"));
}
