//! Downloads and unpacks Debian packages below the target directory, without root.
//!
//! Apt runs with a separate configuration, separate lists and an empty package database. It reads
//! the host's archive keys and the address of its mirror, but changes no files of the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The releases that kernels and QEMU come from.
const RELEASES: [&str; 4] = ["bookworm", "bookworm-backports", "trixie", "trixie-backports"];

/// The mirror that this machine's own apt uses for Debian.
fn mirror() -> Result<String> {
    let targets = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"])
        .output()
        .context("apt-get is needed (Debian or a derivative)")?;
    let uris = String::from_utf8_lossy(&targets.stdout);
    let mut archives = uris.lines().filter(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    let archive =
        archives.next().context("no Debian mirror among apt's sources (apt-get update)")?;
    Ok(archive.to_owned())
}

fn sources(mirror: &str) -> String {
    RELEASES.iter().map(|release| format!("deb {mirror} {release} main\n")).collect()
}

/// Downloads and unpacks Debian packages with a separately configured apt.
#[derive(Debug)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// Uses an apt below `root`, which is set up when a package must be downloaded.
    pub fn open(root: &Path) -> Result<Self> {
        let root = root.join("apt");
        fs::create_dir_all(&root)?;
        Ok(Self { root })
    }

    /// Sets apt up. Only the first call downloads the mirror's lists.
    fn prepare(&self) -> Result<()> {
        for directory in ["state/lists/partial", "cache/archives/partial", "etc"] {
            fs::create_dir_all(self.root.join(directory))?;
        }
        fs::write(self.root.join("etc/sources.list"), sources(&mirror()?))?;
        fs::write(self.root.join("status"), "")?;
        fs::write(self.configuration(), self.settings())?;
        if !self.lists().exists() {
            self.apt("apt-get", &["update"])
                .context("cannot get the package lists of Debian's mirror")?;
            fs::write(self.lists(), "")?;
        }
        Ok(())
    }

    /// A file that exists once apt has its lists.
    fn lists(&self) -> PathBuf {
        self.root.join("updated")
    }

    fn forget_lists(&self) -> Result<()> {
        Ok(fs::remove_file(self.lists())?)
    }

    fn downloads(&self) -> PathBuf {
        self.root.join("cache/archives")
    }

    fn configuration(&self) -> PathBuf {
        self.root.join("apt.conf")
    }

    fn settings(&self) -> String {
        let root = self.root.display();
        format!(
            "Dir::State \"{root}/state\";\nDir::State::status \"{root}/status\";\nDir::Cache \"{root}/cache\";\n\
             Dir::Etc::sourcelist \"{root}/etc/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Dir::Etc::preferencesparts \"/dev/null\";\nAcquire::Check-Valid-Until \"false\";\n\
             APT::Architecture \"amd64\";\nAPT::Sandbox::User \"\";\nAcquire::Languages \"none\";\n"
        )
    }

    fn apt(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.configuration()).env("LC_ALL", "C").args(arguments);
        let output = command
            .output()
            .with_context(|| format!("{program} is needed (Debian or a derivative)"))?;
        ensure!(
            output.status.success(),
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The kernel package that a metapackage such as `linux-image-cloud-amd64` of `release` depends
    /// on.
    pub(crate) fn kernel(&self, metapackage: &str, release: &str) -> Result<String> {
        self.prepare()?;
        let text = self.apt("apt-cache", &["show", &format!("{metapackage}/{release}")])?;
        let depends =
            text.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
        let names =
            depends.split(',').map(|name| name.split_whitespace().next().unwrap_or_default());
        let mut kernels = names.filter(|name| name.starts_with("linux-image-"));
        let kernel = kernels.next();
        Ok(kernel.with_context(|| format!("no {metapackage} in {release}"))?.to_owned())
    }

    /// The packages of a kernel. Newer kernels have an image, a binary and a modules package.
    pub(crate) fn parts_of_kernel(&self, image: &str) -> Result<Vec<String>> {
        let text = self.apt("apt-cache", &["show", image])?;
        let depends =
            text.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
        let names = depends.split(',').filter_map(|entry| entry.split_whitespace().next());
        let version = image.trim_start_matches("linux-image-");
        let parts = names.filter(|name| name.ends_with(version)).map(str::to_owned);
        Ok(std::iter::once(image.to_owned()).chain(parts).collect())
    }

    /// Unpacks the packages `names` of `release` into the directory `into`, unless it was done
    /// before; with all their dependencies if `closure`.
    pub fn unpack(
        &self,
        release: &str,
        names: &[impl AsRef<str>],
        closure: bool,
        into: &Path,
    ) -> Result<()> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let stamp = into.join(".unpacked");
        if fs::read_to_string(&stamp).is_ok_and(|text| text == names.join(" ")) {
            return Ok(());
        }
        eprintln!("fetching {} of {release}, once", names.join(" "));
        self.prepare()?;
        if into.exists() {
            fs::remove_dir_all(into)?;
        }
        fs::create_dir_all(into)?;
        let archives = self.archives(release, &names, closure).or_else(|error| {
            // The mirror may have replaced packages since the lists were downloaded.
            self.forget_lists().and_then(|()| self.prepare()).map_err(|_| error)?;
            self.archives(release, &names, closure)
        })?;
        for archive in archives {
            let status = Command::new("dpkg-deb").arg("-x").arg(&archive).arg(into).status();
            ensure!(
                status.context("dpkg-deb is needed")?.success(),
                "cannot unpack {}",
                archive.display()
            );
        }
        fs::remove_dir_all(self.downloads())?;
        fs::write(stamp, names.join(" "))?;
        Ok(())
    }

    fn archives(&self, release: &str, names: &[&str], closure: bool) -> Result<Vec<PathBuf>> {
        let downloads = self.downloads();
        if downloads.exists() {
            fs::remove_dir_all(&downloads)?;
        }
        fs::create_dir_all(downloads.join("partial"))?;
        if closure {
            let mut arguments =
                vec!["-y", "--no-install-recommends", "--download-only", "-t", release, "install"];
            arguments.extend(names);
            self.apt("apt-get", &arguments)?;
        } else {
            for name in names {
                self.download(&downloads, &format!("{name}/{release}"))?;
            }
        }
        let files = fs::read_dir(&downloads)?.map(|entry| entry.map(|entry| entry.path()));
        let archives: Vec<PathBuf> = files.collect::<Result<_, _>>()?;
        let archives: Vec<_> =
            archives.into_iter().filter(|path| path.extension() == Some("deb".as_ref())).collect();
        if archives.is_empty() {
            bail!("apt downloaded nothing for {names:?}");
        }
        Ok(archives)
    }

    fn download(&self, directory: &Path, package: &str) -> Result<()> {
        let mut command = Command::new("apt-get");
        command
            .env("APT_CONFIG", self.configuration())
            .current_dir(directory)
            .args(["download", package]);
        let output = command.output()?;
        ensure!(
            output.status.success(),
            "download {package}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}
