//! Checks of settings and counters of a network interface that are in no file, but are printed by
//! `ethtool` and `ip`.

use std::process::Command;

use super::Check;

/// An option of `ethtool`, and the check of what it prints: by subject, interface and text.
type Shown = (&'static str, fn(&str, &str, &str) -> Check);

const SHOWN: [Shown; 4] =
    [("-a", pause), ("--show-fec", error_correction), ("-c", coalescing), ("-S", discards)];

/// The checks; `subject` is device and interface. A value is unknown if its program is not
/// installed or may not show it.
pub(super) fn checks(subject: &str, interface: &str) -> Vec<Check> {
    let ethtool = |option| printed("ethtool", &[option, interface]);
    let checks = SHOWN.iter().map(|(option, check)| check(subject, interface, &ethtool(option)));
    let link = printed("ip", &["-details", "link", "show", "dev", interface]);
    checks.chain(trust(subject, interface, &link)).collect()
}

/// What a program prints; nothing if it is not installed, or fails.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok();
    let output = output.filter(|output| output.status.success());
    output.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first word after `name` and a colon.
fn word<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    value?.split_whitespace().next()
}

fn pause(subject: &str, interface: &str, text: &str) -> Check {
    let why = "a pause frame stops the port, and with it every stream that it carries";
    let check = Check::new(subject, "pause frames", format!("ethtool -a {interface}"), why);
    match (word(text, "RX"), word(text, "TX")) {
        (Some(rx), Some(tx)) => check.judge(
            rx == "off" && tx == "off",
            format!("received {rx}, sent {tx}"),
            format!("ethtool -A {interface} rx off tx off (RoCE may be set up to need them)"),
        ),
        _ => check,
    }
}

fn error_correction(subject: &str, interface: &str, text: &str) -> Check {
    let why = "forward error correction (FEC) delays each frame, and many links need it";
    let source = format!("ethtool --show-fec {interface}");
    let check = Check::new(subject, "error correction", source, why);
    match word(text, "Active FEC encoding").or_else(|| word(text, "Active FEC encodings")) {
        Some(encoding) => check.note(encoding),
        None => check,
    }
}

fn coalescing(subject: &str, interface: &str, text: &str) -> Check {
    let why = "it delays what the kernel receives, including the program's TCP connections";
    let check = Check::new(subject, "coalescing", format!("ethtool -c {interface}"), why);
    match (word(text, "Adaptive RX"), word(text, "rx-usecs")) {
        (Some(adaptive), Some(delay)) => check.judge(
            adaptive != "on" && delay == "0",
            format!("adaptive {adaptive}, up to {delay} us"),
            format!("ethtool -C {interface} adaptive-rx off rx-usecs 0"),
        ),
        _ => check,
    }
}

fn discards(subject: &str, interface: &str, text: &str) -> Check {
    let why = "frames that came while the port's buffer was full were lost for every program";
    let source = format!("ethtool -S {interface}");
    let check = Check::new(subject, "frames discarded by the port", source, why);
    match word(text, "rx_discards_phy") {
        Some(count) => check.judge(
            count == "0",
            format!("{count} since the driver was loaded"),
            "PCIe settings as above, buffers on the adapter's NUMA node, or fewer frames",
        ),
        None => check,
    }
}

/// Whether a port's virtual functions are trusted; `None` if it has none.
fn trust(subject: &str, interface: &str, text: &str) -> Option<Check> {
    let functions = text.lines().filter_map(|line| line.trim().strip_prefix("vf "));
    let (trusted, others): (Vec<_>, Vec<_>) = functions
        .filter_map(|line| Some((line.split_whitespace().next()?, line)))
        .partition(|(_, line)| line.contains("trust on"));
    let why = "a virtual function gets frames of other addresses only if the host trusts it";
    let source = format!("ip -details link show dev {interface}");
    let check = Check::new(subject, "trusted virtual functions", source, why);
    let (number, _) = others.first().or(trusted.first())?;
    Some(check.judge(
        others.is_empty(),
        format!("{} of {}", trusted.len(), trusted.len() + others.len()),
        format!("ip link set dev {interface} vf {number} trust on, for each that sniffs"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    /// The verdict and value for text that `ethtool` printed.
    fn found(check: fn(&str, &str, &str) -> Check, text: &str) -> (Verdict, String) {
        let check = check("mlx5_0 (eth0)", "eth0", text);
        (check.verdict, check.value)
    }

    #[test]
    fn what_ethtool_prints_is_judged() {
        let paused = "Pause parameters for eth0:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\n";
        assert_eq!(found(pause, paused), (Verdict::Change, "received on, sent off".to_owned()));
        assert_eq!(found(pause, &paused.replace("on", "off")).0, Verdict::Ok);
        let fec =
            "FEC parameters for eth0:\nConfigured FEC encodings: Auto\nActive FEC encoding: RS\n";
        assert_eq!(found(error_correction, fec), (Verdict::Note, "RS".to_owned()));
        let moderated = "Coalesce parameters for eth0:\nAdaptive RX: on  TX: on\nrx-usecs: 8\n";
        let value = "adaptive on, up to 8 us".to_owned();
        assert_eq!(found(coalescing, moderated), (Verdict::Change, value));
        let at_once = moderated.replace("RX: on", "RX: off").replace('8', "0");
        assert_eq!(found(coalescing, &at_once).0, Verdict::Ok);
        let counted = "NIC statistics:\n     rx_packets: 9\n     rx_discards_phy: 7\n";
        assert_eq!(found(discards, counted).0, Verdict::Change);
        assert_eq!(found(discards, &counted.replace('7', "0")).0, Verdict::Ok);
    }

    #[test]
    fn trust_of_virtual_functions_is_counted() {
        let link = "2: eth0: <UP> mtu 1500\n    link/ether 00:00:00:00:00:01\n    \
            vf 0     link/ether 00:00:00:00:00:02, spoof checking off, trust on\n    \
            vf 1     link/ether 00:00:00:00:00:03, spoof checking off, trust off\n";
        let of = |text: &str| trust("mlx5_0 (eth0)", "eth0", text);
        let check = of(link).expect("functions");
        assert_eq!((check.verdict, &*check.value), (Verdict::Change, "1 of 2"));
        assert!(check.cure.is_some_and(|cure| cure.contains("vf 1 trust on")));
        let check = of(&link.replace("trust off", "trust on")).expect("functions");
        assert_eq!((check.verdict, &*check.value), (Verdict::Ok, "2 of 2"));
        assert!(of("2: eth0: <UP> mtu 1500\n").is_none());
    }

    /// Without the program, or where it does not know the interface.
    #[test]
    fn what_ethtool_does_not_show_is_unknown() {
        for check in checks("none", "no interface of this name") {
            assert_eq!(check.verdict, Verdict::Unknown, "{check:?}");
        }
    }
}
