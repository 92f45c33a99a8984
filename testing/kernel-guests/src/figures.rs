//! Formats the measurements of the guest with rdma_rxe for `cargo xtask figures`.

use std::collections::BTreeMap;

/// A case that the guest measured.
struct Case {
    /// Its name in the guest's lines.
    word: &'static str,
    name: &'static str,
    /// Factor from the guest's figure to the unit in `name`.
    scale: f64,
}

/// Bytes by which the two runs of the case "processor" differ.
const MORE_BYTES: f64 = 400.0 * 65536.0;
/// Nanoseconds of a tick of /proc/stat (`USER_HZ` is 100).
const TICK: f64 = 1e7;

const CASES: [Case; 6] = [
    Case { word: "polled", name: "one way of 64 bytes, SEND, polling, µs", scale: 1.0 },
    Case { word: "awaited", name: "one way of 64 bytes, SEND, with events, µs", scale: 1.0 },
    Case {
        word: "replaced",
        name: "one way of 64 bytes, SEND, with events, drop-in library, µs",
        scale: 1.0,
    },
    Case { word: "rate", name: "SENDs of 64 bytes, thousands per second", scale: 1e3 },
    Case { word: "bandwidth", name: "WRITEs of 64 KiB, MB per second", scale: 1.0 },
    Case {
        word: "processor",
        name: "SENDs of 64 KiB, processor time per byte at both ends, ns",
        scale: TICK / MORE_BYTES,
    },
];

/// Devices at both ends.
const OURS: &str = "uverbs_soft";
const RXE: &str = "rxe";
const MIXED: &str = "mixed";
/// UDP alone.
const UDP: &str = "udp";

/// Figures by case and devices, in the order of the runs.
type Figures<'a> = BTreeMap<(&'a str, &'a str), Vec<f64>>;

/// Reads the lines "@@ figure CASE DEVICES NUMBER" of a console.
fn read(console: &str) -> Figures<'_> {
    let mut all = Figures::new();
    for line in console.lines() {
        let Some((_, rest)) = line.split_once("@@ figure ") else { continue };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let [case, devices, number] = words[..] else { continue };
        let Ok(number) = number.parse() else { continue };
        all.entry((case, devices)).or_default().push(number);
    }
    all
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Rounds a figure to three significant digits.
fn short(figure: f64) -> String {
    let digits = if figure < 10.0 { 2 } else { 1 };
    format!("{figure:.digits$}")
}

impl Case {
    fn line(&self, all: &Figures<'_>) -> Option<String> {
        let of = |devices| all.get(&(self.word, devices));
        let is_figure = |figure: &&f64| **figure > 0.0;
        let figure = |devices| {
            let valid = of(devices)?.iter().filter(is_figure).copied().collect();
            Some(median(valid)? * self.scale)
        };
        let pairs = of(OURS)?.iter().zip(of(RXE)?);
        let pairs = pairs.filter(|(ours, rxe)| is_figure(ours) && is_figure(rxe));
        let ratios: Vec<f64> = pairs.map(|(ours, rxe)| ours / rxe).collect();
        let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = ratios.iter().copied().fold(0.0, f64::max);
        Some(format!(
            "{{\"table\":\"rxe\",\"case\":\"{}\",\"ours\":{},\"rxe\":{},\"mixed\":{},\
             \"udp\":{},\"ratio\":{:.2},\"lowest\":{lowest:.2},\"highest\":{highest:.2}}}\n",
            self.name,
            short(figure(OURS)?),
            short(figure(RXE)?),
            short(figure(MIXED)?),
            short(figure(UDP)?),
            median(ratios.clone())?,
        ))
    }
}

/// A line for each case that was measured. A difference of two runs is left out if it is not
/// positive, because the machine was busy during the shorter one.
pub(crate) fn lines(console: &str) -> String {
    let all = read(console);
    CASES.iter().filter_map(|case| case.line(&all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_each_run() {
        let mut console = String::from("@@ begin 38\n");
        for (ours, rxe) in [(30, 10), (10, 10), (40, 20)] {
            let figures = [(OURS, ours), (RXE, rxe), (MIXED, 7), (UDP, 3)];
            for (devices, figure) in figures {
                console.push_str(&format!("@@ figure polled {devices} {figure}.0\n"));
            }
        }
        console.push_str("@@ figure polled uverbs_soft 30\n@@ figure polled rxe -1\n");
        console.push_str("@@ figure rate rxe \n@@ end 38 0\n");
        assert_eq!(
            lines(&console),
            "{\"table\":\"rxe\",\"case\":\"one way of 64 bytes, SEND, polling, µs\",\"ours\":30.0,\
             \"rxe\":10.0,\"mixed\":7.00,\"udp\":3.00,\"ratio\":2.00,\"lowest\":1.00,\"highest\":3.00}\n"
        );
    }
}
