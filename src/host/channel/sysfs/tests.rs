use std::os::unix::fs::symlink;

use super::*;

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("uverbs-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn device(&self, uverbs: &str, name: &str) {
        self.write(&format!("sys/class/infiniband_verbs/{uverbs}/ibdev"), &format!("{name}\n"));
        self.write(&format!("sys/class/infiniband_verbs/{uverbs}/dev"), "231:192\n");
        self.write(&format!("sys/class/infiniband_verbs/{uverbs}/abi_version"), "1\n");
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn devices_come_in_numeric_order_with_their_drivers() {
    let tree = Tree::new("scan");
    tree.device("uverbs10", "mlx5_1");
    tree.device("uverbs2", "mlx5_0");
    tree.device("uverbs3", "irdma0");
    tree.write("sys/class/infiniband_verbs/abi_version", "6\n");
    let alias = "pci:v000015B3d00001017sv000015B3sd00000020bc02sc00i00\n";
    tree.write("sys/class/infiniband/mlx5_0/device/modalias", alias);
    tree.write("sys/class/infiniband/irdma0/device/modalias", "pci:v00008086d00001592\n");
    let device = tree.0.join("sys/class/infiniband/mlx5_1/device");
    fs::create_dir_all(&device).unwrap();
    symlink("../../bus/pci/drivers/mlx5_core", device.join("driver")).unwrap();

    let found = scan(&Roots::below(&tree.0)).unwrap();
    let names: Vec<_> = found.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["mlx5_0", "irdma0", "mlx5_1"]);
    assert_eq!(found[0].driver, Driver::Mlx5);
    assert!(matches!(found[1].driver, Driver::Other(_)));
    assert_eq!(found[2].driver, Driver::Mlx5);
    assert_eq!(found[0].number, Some((231, 192)));
    assert_eq!(found[0].node, tree.0.join("dev/infiniband/uverbs2"));
}

#[test]
fn no_rdma_in_the_kernel_means_no_devices() {
    assert!(scan(&Roots::below("/nonexistent")).unwrap().is_empty());
}

#[test]
fn mlx4_is_not_mlx5() {
    assert!(!is_mlx5_alias("pci:v000015B3d00001003sv"));
    assert!(is_mlx5_alias("pci:v000015B3d0000A2D6sv"));
    assert!(!is_mlx5_alias("pci:v000015B3d"));
}
