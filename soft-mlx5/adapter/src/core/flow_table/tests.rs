use super::*;

fn rule(mask: u8, value: u8) -> FlowRule {
    let mut rule = FlowRule::default();
    (rule.mask.source_mac[0], rule.value.source_mac[0]) = (mask, value);
    rule
}

#[test]
fn six_masks_share_a_table_and_each_later_group_has_one_rule() {
    let mut table = FlowTable::default();
    for n in 0..6 {
        table.add(FlowId(n.into()), &rule(n, 0)).unwrap();
        assert_eq!(table.groups[&(u32::from(n) * 9362)].size, 9362);
    }
    table.add(FlowId(6), &rule(0x80, 0)).unwrap();
    table.add(FlowId(7), &rule(0x80, 0x80)).unwrap();
    table.add(FlowId(8), &rule(3, 1)).unwrap();
    assert_eq!(table.groups.len(), 8);
    assert!([56172, 56173].iter().all(|start| table.groups[start].size == 1));
    // The entry of a group without rules is reused.
    table.remove(FlowId(2), &rule(2, 0));
    table.add(FlowId(9), &rule(0x81, 0)).unwrap();
    assert_eq!(table.groups[&(2 * 9362)].mask, rule(0x81, 0).mask);
    let rest = Group { size: 9362, mask: FlowFields::default(), entries: Vec::new() };
    table.groups.insert(56174, rest);
    assert_eq!(table.add(FlowId(10), &rule(0x82, 0)), Err(CoreError::FlowTableFull));
}
