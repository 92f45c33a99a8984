//! docs/drop-in.md describes the effect of each direct verb that programs import.

mod library;

use std::collections::BTreeMap;
use std::process::Command;

use library::{DropIn, compiled, skip};

const PAGE: &str = include_str!("../../docs/drop-in.md");
/// A name in each line, and the programs that import it.
const IMPORTED: &str = include_str!("../exports/imported-mlx5.txt");
/// Version, name and function of each exported symbol.
const EXPORTS: &str = include_str!("../exports.txt");

const REFUSED: &str = "EOPNOTSUPP";

/// The table: importing programs and effect of each name.
fn table() -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let (_, rest) = PAGE.split_once("<!-- direct verbs -->\n").expect("the table's begin");
    let (table, _) = rest.split_once("<!-- end of direct verbs -->").expect("the table's end");
    let rows = table.lines().skip(2).map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [_, name, importers, answer, _] = cells[..] else { panic!("not three cells: {row}") };
        (name.trim_matches('`'), (importers, answer))
    });
    rows.collect()
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

/// The function of each name of libmlx5, in its default version.
fn functions() -> BTreeMap<&'static str, &'static str> {
    let words = lines(EXPORTS).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let exports = words.filter_map(|words| match words[..] {
        [version, name, function] if version.starts_with("MLX5_") => Some((name, function)),
        _ => None,
    });
    exports.collect()
}

#[test]
fn the_docs_have_the_names_that_programs_import() {
    let imported: BTreeMap<_, _> = lines(IMPORTED)
        .filter_map(|line| line.split_once(' '))
        .map(|(name, importers)| (name, importers.replace(' ', ", ")))
        .collect();
    assert!(imported.len() > 100, "only {} names", imported.len());
    let told = table().into_iter().map(|(name, (importers, _))| (name, importers.to_owned()));
    assert_eq!(told.collect::<BTreeMap<_, _>>(), imported);
}

#[test]
fn the_docs_describe_each_direct_verb() {
    let (table, functions) = (table(), functions());
    for (name, (_, answer)) in &table {
        let is_refused = functions[name].starts_with("private::");
        assert_eq!(*answer == REFUSED, is_refused, "{name}: {answer}");
        let known =
            [REFUSED, "works", "partly: ", "EINVAL, "].iter().any(|word| answer.starts_with(word));
        assert!(known, "{name}: {answer}");
    }
    let drop_in = DropIn::new("refused");
    let Some(program) = compiled(&drop_in, "refused.c", &["-ldl"]) else {
        return skip("no C compiler");
    };
    let refused = table.iter().filter(|(_, (_, answer))| *answer == REFUSED).map(|(name, _)| name);
    let output = Command::new(program)
        .args(refused)
        .env("LD_LIBRARY_PATH", drop_in.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("kept"), "{said}{failed}");
}
