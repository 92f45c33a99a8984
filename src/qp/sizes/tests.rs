use super::*;

const LIMITS: DeviceLimits = DeviceLimits {
    requests: 1 << 15,
    send_wqe_bytes: 1024,
    recv_wqe_bytes: 512,
    send_wqebbs: 1 << 15,
    recv_wqes: 1 << 15,
    srq_wqes: 1 << 15,
    cqes: 1 << 22,
};

fn rings(sends: u32, receives: u32, sge: u32) -> Result<Rings> {
    let wanted = Capacities {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: sge,
        max_recv_sge: sge,
        max_inline_data: 0,
    };
    Rings::new(Service::Rc, Operations::VERBS, &wanted, 0, &LIMITS)
}

#[test]
fn grants_what_was_asked() {
    let granted = rings(100, 100, 3).unwrap().capacities();
    assert!(granted.max_send_wr >= 100 && granted.max_send_sge >= 3);
    assert_eq!((granted.max_recv_wr, granted.max_recv_sge), (128, 4));
}

#[test]
fn refuses_and_says_what_was_asked() {
    let error = rings(1 << 20, 1, 1).unwrap_err().to_string();
    assert!(error.contains("too deep") && error.contains("1048576 sends"), "{error}");
    let error = rings(1, 1, 33).unwrap_err().to_string();
    assert!(error.contains("1 receives of 33 SGEs"), "{error}");
}
