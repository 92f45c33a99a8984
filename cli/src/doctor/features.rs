//! Checks of an adapter's features for programs that use Ethernet frames, as the device reports
//! them.

use uverbs::cq::TimestampFormat;
use uverbs::{Context, Error, ErrorKind, Limit};

use super::Check;
use super::device::Examined;

/// Checks that need an open device.
pub(super) fn of(device: &Examined) -> Vec<Check> {
    match uverbs::device(&device.name).and_then(|device| device.open()) {
        Ok(context) => checks(&device.name, &context),
        Err(error) => {
            let why = "nothing can be used before it is opened";
            let check = Check::new(&device.name, "opening", "/dev/infiniband", why);
            vec![refused(check, &error)]
        }
    }
}

pub(super) fn checks(subject: &str, context: &Context) -> Vec<Check> {
    let limits = context.limits().unwrap_or_default();
    let limit = |wanted: &str| match limits.iter().find(|(name, _)| *name == wanted) {
        Some((_, Limit::Number(number))) => *number,
        _ => 0,
    };
    let offered = |name, wanted, why, what: &str| {
        let check = Check::new(subject, name, wanted, why);
        match limit(wanted) {
            0 => check.note("none"),
            most => check.note(what.replace("{}", &most.to_string())),
        }
    };
    vec![
        combining(subject, context.combines_writes()),
        frames(subject, context),
        clock(subject, context),
        offered(
            "compressed completions",
            "max_cqe_compression",
            "they save bus bandwidth for recorders, and cost latency and timestamps",
            "offered, up to {} as one; a queue uses them only on request",
        ),
        offered(
            "striding queues",
            "max_single_wqe_log_num_of_strides",
            "recorders need no buffer and no receive for each frame",
            "offered, up to 2^{} strides in a buffer",
        ),
        offered(
            "pacing",
            "qp_rate_limit_max",
            "limits how fast a send queue sends, for exchanges that want it",
            "offered, up to {} kbit/s",
        ),
    ]
}

/// Whether queues of frames can be created: not on InfiniBand, in multi-port mode, or without the
/// required capability.
fn frames(subject: &str, context: &Context) -> Check {
    let why = "market data and orders need raw packet queue pairs";
    let check = Check::new(subject, "queues of frames", "create_qp", why);
    match context.alloc_pd().and_then(|pd| pd.create_tx_queue(1).build()) {
        Ok(_) => check.ok("can be made"),
        Err(error) if error.kind() == ErrorKind::Unsupported => check.note(error.to_string()),
        Err(error) => refused(check, &error),
    }
}

/// Whether the kernel found that writes to the device's pages are combined.
fn combining(subject: &str, combines: uverbs::Result<bool>) -> Check {
    let why = "short requests are copied into the device; without it the device fetches each of \
        them by another trip over PCIe";
    let check = Check::new(subject, "write combining", "alloc_uar (BlueFlame)", why);
    match combines {
        Ok(true) => check.ok("works: requests are copied into the device (BlueFlame)"),
        Ok(false) => check.change(
            "does not work: queues only ring doorbells",
            "a kernel with PAT (no `nopat`); in a guest, a hypervisor that leaves write combining \
                of the device's pages to the guest",
        ),
        Err(error) => refused(check, &error),
    }
}

fn clock(subject: &str, context: &Context) -> Check {
    let why = "timestamps of frames are UTC, and no program has to convert them";
    let check = Check::new(subject, "real-time timestamps", "create_cq", why);
    match context.create_cq(1).timestamps(TimestampFormat::RealTime).build() {
        Ok(_) => check.ok("offered"),
        Err(error) if error.kind() == ErrorKind::Unsupported => check.note(
            "none: timestamps count ticks (REAL_TIME_CLOCK_ENABLE of the firmware's configuration)",
        ),
        Err(error) => refused(check, &error),
    }
}

fn refused(check: Check, error: &Error) -> Check {
    let cure = error.cure();
    let cure = if cure.is_empty() { "uverbs info shows more" } else { cure };
    check.change(error.to_string(), cure)
}

#[cfg(test)]
mod tests {
    use uverbs::Device;
    use uverbs::soft::{DeviceBuilder, SoftDevice};

    use super::*;
    use crate::doctor::Verdict;

    /// Verdicts and values of the checks on such a software device, by name.
    fn found(change: impl FnOnce(DeviceBuilder) -> DeviceBuilder) -> Vec<(Verdict, String)> {
        let builder = change(SoftDevice::builder("soft0").without_wire());
        let device = builder.build().expect("a software device");
        let context = Device::from_soft(device).open().expect("it opens");
        let checks = checks("soft0", &context);
        checks.into_iter().map(|check| (check.verdict, check.value)).collect()
    }

    #[test]
    fn a_device_says_what_it_offers() {
        let all = found(|builder| builder.real_time_clock());
        let verdicts: Vec<_> = all.iter().map(|(verdict, _)| *verdict).collect();
        use Verdict::{Note, Ok};
        assert_eq!(verdicts, [Ok, Ok, Ok, Note, Note, Note]);
        assert!(all[3].1.contains("up to 64 as one"), "{}", all[3].1);
        assert!(all[4].1.contains("up to 2^14"), "{}", all[4].1);
    }

    #[test]
    fn a_machine_without_write_combining_is_told() {
        let check = combining("mlx5_0", Result::Ok(false));
        assert_eq!(check.verdict, Verdict::Change);
        assert!(check.cure.is_some_and(|cure| cure.contains("nopat")));
    }

    #[test]
    fn a_device_says_what_it_lacks() {
        let all = found(DeviceBuilder::without_packet_pacing);
        assert!(all[2].1.contains("REAL_TIME_CLOCK_ENABLE"), "{}", all[2].1);
        assert_eq!(all[5], (Verdict::Note, "none".to_owned()));
        let infiniband = found(DeviceBuilder::infiniband);
        assert_eq!(infiniband[1].0, Verdict::Note, "{}", infiniband[1].1);
    }
}
