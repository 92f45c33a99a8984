//! The outcomes of a guest's tests, read from its console, and the table of several guests.

use std::fmt;

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It succeeded. For a test binary, with the number of tests that ran.
    Passed(Option<usize>),
    /// It failed with this exit status. For a test binary, with the names of the failed tests.
    Failed(i32, Vec<String>),
    /// The guest ended before the test.
    NotRun,
}

impl Outcome {
    pub(crate) fn is_passed(&self) -> bool {
        matches!(self, Self::Passed(_))
    }
}

impl From<bool> for Outcome {
    fn from(passed: bool) -> Self {
        if passed { Self::Passed(None) } else { Self::Failed(1, Vec::new()) }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(None) => f.pad("ok"),
            Self::Passed(Some(tests)) => f.pad(&format!("ok, {tests}")),
            Self::Failed(..) => f.pad("FAILED"),
            Self::NotRun => f.pad("NOT RUN"),
        }
    }
}

/// The results of a guest, from its console.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
    /// All modules were unloaded.
    pub(crate) unloaded: bool,
    /// The guest's script reached its end.
    pub(crate) finished: bool,
}

impl Report {
    pub(crate) fn parse(console: &str, tests: usize) -> Self {
        let mut outcomes = vec![Outcome::NotRun; tests];
        let (mut failures, mut passed) = (Vec::new(), None);
        for line in console.lines() {
            failures.extend(failed_test(line));
            passed = passed_tests(line).or(passed);
            let Some((number, status)) =
                line.split_once("@@ end ").and_then(|(_, rest)| ended(rest))
            else {
                continue;
            };
            let (failed, passed) = (std::mem::take(&mut failures), passed.take());
            if let Some(outcome) = outcomes.get_mut(number) {
                *outcome = match status {
                    0 => Outcome::Passed(passed),
                    status => Outcome::Failed(status, failed),
                };
            }
        }
        let marked = |mark: &str| console.lines().any(|line| line.contains(mark));
        Self { outcomes, unloaded: marked("@@ unloaded"), finished: marked("@@ done") }
    }
}

/// "3 0" after the mark: the test's number and its exit status.
fn ended(rest: &str) -> Option<(usize, i32)> {
    let mut words = rest.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// "test NAME ... FAILED", as the test harness prints it.
fn failed_test(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.to_owned())
}

/// "test result: ok. 12 passed; ...".
fn passed_tests(line: &str) -> Option<usize> {
    line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse().ok()
}

/// Results of several guests: a row for each test, a column for each guest.
#[derive(Debug, Default)]
pub(crate) struct Table {
    columns: Vec<String>,
    rows: Vec<(String, Vec<Option<Outcome>>)>,
}

impl Table {
    /// Adds a guest, with its tests in their order.
    pub(crate) fn add(&mut self, guest: &str, results: &[(String, Outcome)]) {
        let column = self.columns.len();
        self.columns.push(guest.to_owned());
        for (name, outcome) in results {
            let row = match self.rows.iter().position(|(known, _)| known == name) {
                Some(row) => row,
                None => {
                    self.rows.push((name.clone(), Vec::new()));
                    self.rows.len() - 1
                }
            };
            let cells = &mut self.rows[row].1;
            cells.resize(column, None);
            cells.push(Some(outcome.clone()));
        }
    }

    pub(crate) fn passed(&self) -> bool {
        let mut outcomes = self.rows.iter().flat_map(|(_, cells)| cells.iter().flatten());
        outcomes.all(Outcome::is_passed)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let width = |column: &String| column.len().max(10);
        write!(f, "{:widest$}", "")?;
        self.columns.iter().try_for_each(|column| write!(f, "  {column:<10}"))?;
        for (name, cells) in &self.rows {
            write!(f, "\n{name:widest$}")?;
            for (index, column) in self.columns.iter().enumerate() {
                let cell = cells.get(index).cloned().flatten();
                let text = cell.map_or_else(|| "-".to_owned(), |outcome| outcome.to_string());
                write!(f, "  {text:<0$}", width(column))?;
            }
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSOLE: &str = "@@ booted 6.1\n@@ begin 0\n@@ end 0 0\n@@ begin 1\ntest a ... ok\n\
        test result: ok. 12 passed; 0 failed\n[  3.1] noise @@ end 1 0\n@@ begin 2\ntest b ... FAILED\n@@ end 2 101\n@@ begin 3\n";

    #[test]
    fn the_console_tells_how_tests_ended() {
        let report = Report::parse(CONSOLE, 4);
        let expected = [
            Outcome::Passed(None),
            Outcome::Passed(Some(12)),
            Outcome::Failed(101, vec!["b".to_owned()]),
            Outcome::NotRun,
        ];
        assert_eq!(report.outcomes, expected);
        assert!(!report.finished && !report.unloaded);
    }

    #[test]
    fn a_table_has_a_column_for_each_guest() {
        let mut table = Table::default();
        let row = |name: &str, outcome| (name.to_owned(), outcome);
        table.add("6.1 ib", &[row("first", true.into())]);
        assert!(table.passed());
        table.add(
            "6.1 roce",
            &[row("second", Outcome::Passed(Some(3))), row("first", false.into())],
        );
        let expected = "        6.1 ib      6.1 roce  \nfirst   ok          FAILED    \nsecond  -           ok, 3     \n";
        assert_eq!(table.to_string(), expected);
        assert!(!table.passed());
    }
}
