//! The results, as a table or as JSON.

/// A median and the spread around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) median: f64,
    /// Half the distance between the quartiles, as a fraction of the median.
    pub(crate) spread: f64,
}

impl Timing {
    /// Of all runs except the first, which warms up; `None` if there was none.
    pub(crate) fn of(runs: &[f64]) -> Option<Self> {
        let mut runs = runs.get(1..)?.to_vec();
        runs.sort_by(f64::total_cmp);
        let at = |part: f64| runs.get((part * runs.len() as f64) as usize).copied();
        let median = at(0.5)?;
        Some(Self { median, spread: (at(0.75)? - at(0.25)?) / 2.0 / median })
    }

    /// Of the ratios of paired runs.
    pub(crate) fn ratio(above: &[f64], below: &[f64]) -> Option<Self> {
        Self::of(&above.iter().zip(below).map(|(a, b)| a / b).collect::<Vec<_>>())
    }
}

/// One case. Times are nanoseconds per operation. Instructions per operation include the loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) ours: Timing,
    pub(crate) libmlx5: Option<Timing>,
    pub(crate) safe: Option<Timing>,
    pub(crate) floor: Timing,
    /// libmlx5's time divided by ours.
    pub(crate) ratio: Option<Timing>,
    /// Our time divided by the floor's.
    pub(crate) above_floor: Timing,
    pub(crate) ours_instructions: Option<f64>,
    pub(crate) libmlx5_instructions: Option<f64>,
    pub(crate) safe_instructions: Option<f64>,
}

impl Row {
    pub(crate) fn json(&self) -> String {
        let number = |value: Option<f64>| value.map_or("null".to_owned(), |v| format!("{v:.2}"));
        let median = |timing: Option<Timing>| number(timing.map(|timing| timing.median));
        let fields = [
            ("ours_ns", median(Some(self.ours))),
            ("libmlx5_ns", median(self.libmlx5)),
            ("safe_ns", median(self.safe)),
            ("ratio", median(self.ratio)),
            ("floor_ns", median(Some(self.floor))),
            ("ours_instr", number(self.ours_instructions)),
            ("libmlx5_instr", number(self.libmlx5_instructions)),
            ("safe_instr", number(self.safe_instructions)),
        ];
        let fields = fields.map(|(name, value)| format!("\"{name}\":{value}")).join(",");
        format!("{{\"case\":\"{}\",{fields}}}", self.case)
    }
}

/// One point of the grid.
#[derive(Clone, Debug)]
pub(crate) struct Square {
    pub(crate) case: String,
    pub(crate) ours: Option<f64>,
    pub(crate) libmlx5: Option<f64>,
    pub(crate) ours_instructions: Option<f64>,
    pub(crate) libmlx5_instructions: Option<f64>,
}

impl Square {
    pub(crate) fn json(&self) -> String {
        let number = |value: Option<f64>| value.map_or("null".to_owned(), |v| format!("{v:.2}"));
        format!(
            "{{\"case\":\"{}\",\"ours_ns\":{},\"ours_instr\":{},\"libmlx5_ns\":{},\"libmlx5_instr\":{}}}",
            self.case,
            number(self.ours),
            number(self.ours_instructions),
            number(self.libmlx5),
            number(self.libmlx5_instructions)
        )
    }
}

pub(crate) fn table(rows: &[Row]) {
    println!("per operation, medians; ± is half the distance between the quartiles of the runs");
    println!(
        "{:<26} {:>13} {:>13} {:>13} {:>13} {:>8} | {:>6} {:>8} {:>6}",
        "case",
        "ours ns",
        "libmlx5 ns",
        "libmlx5/ours",
        "ours/floor",
        "safe ns",
        "ours i",
        "libmlx5",
        "safe i"
    );
    for row in rows {
        let timing = |timing: Option<Timing>| match timing {
            Some(Timing { median, spread }) => format!("{median:.2} ±{:2.0} %", 100.0 * spread),
            None => String::new(),
        };
        let number =
            |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
        println!(
            "{:<26} {:>13} {:>13} {:>13} {:>13} {:>8} | {:>6} {:>8} {:>6}",
            row.case,
            timing(Some(row.ours)),
            timing(row.libmlx5),
            timing(row.ratio),
            timing(Some(row.above_floor)),
            number(row.safe.map(|safe| safe.median)),
            number(row.ours_instructions),
            number(row.libmlx5_instructions),
            number(row.safe_instructions),
        );
    }
}
