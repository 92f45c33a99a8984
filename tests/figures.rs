//! Checks that the figures in README and docs are the benchmarks' counts.

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
    assert_eq!(text.matches("<!-- cargo xtask figures: ").count(), 8);
    let sends = docs("README.md").expect("README.md");
    assert!(sends.contains("<!-- send_sge -->") && sends.contains("<!-- libmlx5 send_sge -->"));
}

/// Posts through a shared doorbell register, or one without BlueFlame, cost little more than posts
/// through the queue's own register.
#[test]
fn no_register_costs_much_more_than_a_dedicated_one() {
    const MORE: f64 = 12.0;
    let grid = Path::new(env!("CARGO_MANIFEST_DIR"));
    let grid = std::fs::read_to_string(grid.join("provider-mlx5/benches/hot_path/grid.txt"));
    let grid = grid.expect("the grid is checked in");
    let points: std::collections::BTreeMap<&str, f64> = grid
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, count)| Some((name.trim(), count.parse().ok()?)))
        .collect();
    let mut compared = 0;
    for (name, count) in &points {
        let prefixes = ["shared none ", "shared ", "none "];
        let Some(own) = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)) else {
            continue;
        };
        assert!(*count <= points[own] + MORE, "{name}: {count}, and {} alone", points[own]);
        compared += 1;
    }
    assert!(compared > 20, "only {compared} points");
}
