//! The results as a table, as JSON, as a picture.

use crate::lines::{self, Axis, Line};
use crate::link::{Measure, Transport, Wait};
use crate::partner::Place;

/// One case with both transports.
pub(crate) struct Row {
    place: Place,
    measure: Measure,
    wait: Wait,
    size: usize,
    /// Nanoseconds of each run; runs of the two transports alternate.
    tcp: Vec<f64>,
    rdma: Vec<f64>,
}

pub(crate) struct Table {
    pub(crate) rows: Vec<Row>,
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Row {
    pub(crate) fn new(place: Place, measure: Measure, wait: Wait, size: usize) -> Self {
        Self { place, measure, wait, size, tcp: Vec::new(), rdma: Vec::new() }
    }

    pub(crate) fn note(&mut self, transport: Transport, time: f64) {
        match transport {
            Transport::Tcp => self.tcp.push(time),
            Transport::Rdma => self.rdma.push(time),
        }
    }

    fn tcp(&self) -> f64 {
        median(self.tcp.clone())
    }

    fn rdma(&self) -> f64 {
        median(self.rdma.clone())
    }

    /// TCP's time divided by ours: the median of the ratios of all runs.
    fn ratio(&self) -> f64 {
        median(self.tcp.iter().zip(&self.rdma).map(|(tcp, rdma)| tcp / rdma).collect())
    }

    fn line(&self) -> String {
        let shown = |time: f64| match self.measure {
            Measure::Latency | Measure::RoundTrips => time / 1e3,
            Measure::Rate => 1e6 / time,
        };
        let wait = if self.wait == Wait::Poll { "polling" } else { "sleeping" };
        format!(
            "{:<24} {wait:<9} {:>8} {:>11.2} {:>11.2} {:>7.2}",
            self.place.to_string(),
            self.size,
            shown(self.tcp()),
            shown(self.rdma()),
            self.ratio()
        )
    }
}

impl Table {
    pub(crate) fn print(&self) {
        let part = |measure| self.rows.iter().filter(move |row| row.measure == measure);
        let heads = [
            (Measure::Latency, "half a round trip in microseconds, medians"),
            (Measure::Rate, "thousands of messages per second, medians"),
        ];
        for (measure, head) in heads {
            println!("\n{head}");
            println!(
                "{:<24} {:<9} {:>8} {:>11} {:>11} {:>7}",
                "", "waiting", "bytes", "TCP", "ours", "gain"
            );
            part(measure).for_each(|row| println!("{}", row.line()));
        }
    }

    pub(crate) fn print_json(&self) {
        for row in &self.rows {
            println!(
                "{{\"place\":\"{}\",\"measure\":\"{:?}\",\"wait\":\"{:?}\",\"size\":{},\"tcp_ns\":{:.1},\"ours_ns\":{:.1},\"gain\":{:.3}}}",
                row.place,
                row.measure,
                row.wait,
                row.size,
                row.tcp(),
                row.rdma(),
                row.ratio()
            );
        }
    }

    /// A chart of the time per message against the message's size.
    pub(crate) fn chart(&self) -> String {
        let line = |label: &str, place: Place, time: fn(&Row) -> f64| {
            let rows = self.rows.iter().filter(|row| {
                row.measure == Measure::Rate && row.wait == Wait::Poll && row.place == place
            });
            let points = rows.map(|row| ((row.size as f64).log2(), (time(row) / 1e3).log10()));
            Line { label: label.to_owned(), points: points.collect() }
        };
        let lines = [
            line("in process, one device", Place::OneDevice, Row::rdma),
            line("in process, two devices", Place::TwoDevices, Row::rdma),
            line("TCP, in process", Place::TwoDevices, Row::tcp),
            line("two processes", Place::Process, Row::rdma),
            line("TCP, two processes", Place::Process, Row::tcp),
        ];
        let marks = (6..=20).step_by(2).map(|log| (f64::from(log), format!("2^{log}")));
        let across =
            Axis { label: "bytes of a message", low: 6.0, high: 20.0, marks: marks.collect() };
        let up = Axis {
            label: "microseconds per message, at the highest rate",
            ..lines::decades(&lines)
        };
        lines::draw(&lines, &across, &up)
    }
}
