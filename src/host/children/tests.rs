use super::*;

#[test]
fn a_child_is_found_by_its_parent_whatever_its_name() {
    let own = std::process::id();
    let stat = |state: char, parent: u32| {
        format!("7 (a) Z 1 (b) {state} {parent} {} 4711 0 0\n", "0 ".repeat(17))
    };
    let child = running_child(7, &stat('S', own));
    assert_eq!(child, Some(Child { id: 7, started: 4711 }));
    assert_eq!(running_child(7, &stat('Z', own)), None);
    assert_eq!(running_child(7, &stat('S', own + 1)), None);
    assert_eq!(running_child(7, "7 (a"), None);
    assert_eq!(running_child(7, "7 (a) S"), None);
}
