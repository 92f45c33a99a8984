use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn a_name_has_one_holder_and_is_freed_when_the_holder_ends() {
    let station = Station::candidate(std::process::id() ^ 0x5a5a);
    let (held, socket) = PrivateName::claim(station).unwrap().expect("free");
    assert!(PrivateName::claim(station).unwrap().is_none());
    assert!(addresses(station).count() > 0);
    drop((held, socket));
    let (held, _socket) = PrivateName::claim(station).unwrap().expect("free again");
    // As if the process had been killed: the socket's file remains.
    fs::write(held.path.with_extension("left"), "").unwrap();
    let (path, left) = (held.path.clone(), held.path.with_extension("left"));
    drop(held);
    fs::rename(left, path).unwrap();
    drop(PrivateName::claim(station).unwrap().expect("what was left is removed"));
}

/// A directory of the test that all users may write into, like `/tmp`.
struct Base(PathBuf);

impl Base {
    fn new(name: &str, mode: u32) -> Self {
        let name = format!("uverbs-private-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Self(path)
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_directory_that_another_user_created_first_is_skipped() {
    let base = Base::new("squatted", 0o1777);
    let plain = base.0.join(plain_name());
    // Another user's entries: a file, a link, a directory that other users can write into.
    let leave: [fn(&Path); 3] = [
        |path| fs::write(path, "").unwrap(),
        |path| std::os::unix::fs::symlink("/nowhere", path).unwrap(),
        |path| {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        },
    ];
    for leave in leave {
        leave(&plain);
        let made = own_directory_in(&base.0).expect("another name");
        assert!(is_own(&made) && made != plain);
        // Later processes find the directory, even after the other user's entry is removed.
        assert_eq!(own_directory_in(&base.0).as_ref(), Some(&made));
        let _ = fs::remove_file(&plain).or_else(|_| fs::remove_dir(&plain));
        assert_eq!(own_directory_in(&base.0).as_ref(), Some(&made));
        fs::remove_dir(&made).unwrap();
    }
    assert_eq!(own_directory_in(&base.0), Some(plain));
}

#[test]
fn all_processes_choose_the_same_directory() {
    let base = Base::new("race", 0o1777);
    for number in ["b", "a"] {
        let path = base.0.join(format!("{}-{number}", plain_name()));
        DirBuilder::new().mode(0o700).create(path).unwrap();
    }
    let all = own_directories_in(&base.0);
    assert_eq!(all.len(), 2);
    assert_eq!(own_directory_in(&base.0).as_ref(), all.first());
    assert!(all[0].to_str().unwrap().ends_with("-a"));
}

#[test]
fn entries_are_safe_in_a_sticky_directory_and_in_one_of_its_user_only() {
    for (mode, keeps) in [(0o1777, true), (0o777, false), (0o755, true)] {
        let base = Base::new("sticky", mode);
        assert_eq!(keeps_entries(&base.0), keeps, "{mode:o}");
    }
}

#[test]
fn directories_that_other_users_can_write_into_are_not_used() {
    assert!(!is_own(Path::new("/tmp")));
    assert!(!is_own(Path::new("/no/such/directory")));
    let link = std::env::temp_dir().join(format!("uverbs-private-link-{}", std::process::id()));
    let own = own_path("name").unwrap();
    std::os::unix::fs::symlink(own.parent().unwrap(), &link).unwrap();
    let is_link_used = is_own(&link);
    fs::remove_file(&link).unwrap();
    assert!(!is_link_used);
}
