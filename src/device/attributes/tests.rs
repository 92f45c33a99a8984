use super::*;

#[test]
fn speeds_multiply_lanes() {
    let mut port = PortAttributes { kernel: QueryPortRespEx::default() };
    assert_eq!(port.gigabits(), None);
    port.kernel.legacy_resp.active_width = PortWidth::X4;
    port.kernel.legacy_resp.active_speed = 64;
    assert_eq!(port.gigabits(), Some(200.0));
    port.kernel.active_speed_ex.0 = 256;
    assert_eq!(port.gigabits(), Some(800.0));
}

#[test]
fn guids_read_like_ibv_devinfo() {
    assert_eq!(Guid(0x5054_00ff_fe12_3456).to_string(), "5054:00ff:fe12:3456");
}
