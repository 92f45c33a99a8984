//! The tables of docs/faults.md and the tests of this folder agree.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names in back quotes in the last column of the table.
fn documented(root: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

/// Names of the functions after a line with only `#[test]` or `#[tokio::test]`.
fn tests(text: &str) -> impl Iterator<Item = String> + '_ {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let is_test = |line: &str| line == "#[test]" || line.starts_with("#[tokio::test");
    let after = lines.windows(2).filter(|pair| is_test(pair[0])).map(|pair| pair[1]);
    let after = after.map(|line| line.strip_prefix("async ").unwrap_or(line));
    let names = after.filter_map(|line| line.strip_prefix("fn ")?.split('(').next());
    names.map(str::to_owned).collect::<Vec<_>>().into_iter()
}

#[test]
fn every_fault_has_a_row_and_every_row_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![
        root.join("tests/faults.rs"),
        root.join("tests/faults_commands.rs"),
        root.join("tests/destruction.rs"),
        root.join("tests/soak/main.rs"),
    ];
    files.extend(
        fs::read_dir(root.join("tests/faults_observed")).unwrap().map(|file| file.unwrap().path()),
    );
    let texts: Vec<_> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let mut written: BTreeSet<_> = texts.iter().flat_map(|text| tests(text)).collect();
    written.remove("every_fault_has_a_row_and_every_row_a_test");
    // Not every test of these files needs a row, because these files test more than faults: those
    // about queues (wrong CQEs, overruns, failing resizes), about completions with errors and about
    // connections.
    let queues = ["hostile.rs", "overrun.rs", "resizing.rs"];
    let mut others = queues.map(|file| root.join("provider-mlx5/tests/queues").join(file)).to_vec();
    others.push(root.join("tests/errors.rs"));
    others.extend(fs::read_dir(root.join("tests/cm")).unwrap().map(|file| file.unwrap().path()));
    let documented = documented(root);
    for file in others {
        let text = fs::read_to_string(file).unwrap();
        written.extend(tests(&text).filter(|name| documented.contains(name)));
    }
    assert_eq!(written, documented);
}
