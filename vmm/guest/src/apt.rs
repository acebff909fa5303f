//! Packages from a Debian mirror, without root and without touching the host.
//!
//! apt downloads with a private configuration: lists, cache and package status are in a directory
//! of the cache. `dpkg-deb` unpacks. The mirror, proxies, credentials and keys are the host's, and
//! apt itself lists the mirrors it knows. No package is installed, no script of a package runs, and
//! the host's own hooks are switched off.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    error::{ErrorContext, GuestError},
    progress::Progress,
    tool,
};

/// The environment variable that names a Debian mirror, as an apt source's URI.
pub(crate) const MIRROR_VARIABLE: &str = "NICFORGE_DEBIAN_MIRROR";

/// An empty cache of packages, and the subdirectory that apt requires in it.
const NO_ARCHIVES: &str = "none";
const NO_ARCHIVES_PARTIAL: &str = "none/partial";

/// Debian's public keys, where the package `debian-archive-keyring` installs them.
const KEYRINGS: [&str; 2] =
    ["/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp"];

/// The names under which Debian's suites occur in package sources.
const SUITES: [&str; 12] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
    "experimental",
];

/// Packages to download, and the suites they come from.
pub(crate) struct Selection {
    /// The selection's name for messages, as in "QEMU".
    pub(crate) what: &'static str,
    /// Suites of the mirror, as in `trixie`.
    pub(crate) suites: &'static [&'static str],
    /// The preferred suite, if it is not the first.
    pub(crate) target: Option<&'static str>,
    /// Packages to download with all their dependencies.
    pub(crate) packages: Vec<&'static str>,
    /// Packages that count as installed, with all that they provide, so that they are not
    /// downloaded.
    pub(crate) assumed: Vec<&'static str>,
}

/// Returns the mirror that the environment names, else the Debian mirrors in the host's package
/// sources.
pub(crate) fn mirrors(progress: &Progress) -> Result<Vec<String>, GuestError> {
    if let Some(named) = std::env::var_os(MIRROR_VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(vec![named.to_string_lossy().into_owned()]);
    }

    let format = "$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI) $(ORIGIN)";
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", format]).env("LC_ALL", "C");

    let lines = tool::run_quietly("looking at the package sources", &mut command, progress)?;
    Ok(debian_mirrors(&lines))
}

/// Extracts Debian mirrors from apt's index targets: type, release, component, URI, origin. Those
/// that apt knows as Debian's come first, then those that only look like it.
fn debian_mirrors(lines: &[String]) -> Vec<String> {
    let mut known = Vec::new();
    let mut guessed = Vec::new();

    for line in lines {
        let mut words = line.splitn(5, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (kind, release, component, uri, origin) = (word(), word(), word(), word(), word());
        if kind != "Packages" || component != "main" || !SUITES.contains(&release) {
            continue;
        }

        // Without lists apt does not know the origin yet and prints the variable unexpanded.
        let list = match origin {
            "Debian" => &mut known,
            _ if origin.starts_with('$') => &mut guessed,
            _ => continue,
        };

        let uri = uri.to_owned();
        if !list.contains(&uri) {
            list.push(uri);
        }
    }

    // Other projects use Debian's suite names for their own. A URI of a Debian mirror usually ends
    // like this.
    guessed.sort_by_key(|uri| !uri.trim_end_matches('/').ends_with("/debian"));
    guessed.retain(|uri| !known.contains(uri));
    known.extend(guessed);

    known
}

/// Downloads a selection into `folder` and returns the packages' files. The folder is created; a
/// second call resumes an interrupted download.
pub(crate) fn download(
    selection: &Selection,
    folder: &Path,
    progress: &Progress,
) -> Result<Vec<PathBuf>, GuestError> {
    let unprovided = |why: String| GuestError::Unprovided { what: selection.what, why, advice: ADVICE };
    let mirrors = match mirrors(progress) {
        Err(GuestError::Start { .. }) => {
            return Err(unprovided("this host has no apt, so it is no relative of Debian".into()));
        }
        mirrors => mirrors?,
    };

    if mirrors.is_empty() {
        return Err(unprovided("none of this host's package sources is a mirror of Debian".into()));
    }

    let mut last_error = None;
    for mirror in mirrors {
        let apt = Apt::set_up(selection, &mirror, folder)?;
        progress.step(&format!("looking for packages of {}", selection.what));
        match apt.update(progress) {
            Ok(()) => return apt.download(selection, progress),
            Err(error @ GuestError::Tool { .. }) => last_error = Some(error),
            Err(error) => return Err(error),
        }
    }

    let why = last_error.map_or_else(String::new, |error| error.to_string());
    let keys = if keyring().is_none() {
        "; Debian's keys are in the package debian-archive-keyring, which is not installed here"
    } else {
        ""
    };

    Err(unprovided(format!("no mirror of Debian gave its lists{keys}: {why}")))
}

/// Advice for hosts on which packages can't be downloaded.
pub(crate) const ADVICE: &str = "On Debian and its relatives: name a mirror of Debian with NICFORGE_DEBIAN_MIRROR and install \
debian-archive-keyring. On other systems: name a QEMU of 10.1 or newer with --qemu, a kernel with --kernel (and its modules \
with --modules), and have a static busybox";

/// Returns the file with Debian's public keys, if this host has one.
fn keyring() -> Option<&'static str> {
    KEYRINGS.into_iter().find(|path| Path::new(path).is_file())
}

/// apt with a private configuration.
struct Apt {
    /// The selection's name for messages.
    what: &'static str,
    /// The folder of the configuration, lists and downloaded packages.
    folder: PathBuf,
    /// The preferred suite, if it is not the first.
    target: Option<&'static str>,
}

impl Apt {
    /// Creates the folders and files of a private apt, which does not touch the host's packages.
    fn set_up(selection: &Selection, mirror: &str, folder: &Path) -> Result<Self, GuestError> {
        let folder = std::path::absolute(folder).context(|| folder.display().to_string())?;
        for part in ["lists/partial", "cache/archives/partial", NO_ARCHIVES_PARTIAL, "log"] {
            std::fs::create_dir_all(folder.join(part)).context(|| folder.join(part).display().to_string())?;
        }

        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).context(|| folder.join(name).display().to_string())
        };
        write("sources.sources", &sources(selection, mirror))?;
        write("status", &package_database(&selection.assumed))?;
        write("apt.conf", &configuration(&folder))?;

        Ok(Self { what: selection.what, folder, target: selection.target })
    }

    /// Returns `apt-get` with the private configuration. It reports its progress on standard
    /// output.
    fn command(&self) -> Command {
        let mut command = Command::new("apt-get");
        // `--config-file` is read after the host's files and overrides them.
        command.arg("--config-file").arg(self.folder.join("apt.conf")).args(["-q", "-o", "APT::Status-Fd=1"]);
        command.envs([("LC_ALL", "C"), ("DEBIAN_FRONTEND", "noninteractive")]);
        command
    }

    /// Downloads the mirror's lists of packages.
    fn update(&self, progress: &Progress) -> Result<(), GuestError> {
        let mut command = self.command();
        // A failed list download is an error here. By default apt continues with old lists.
        command.args(["-o", "APT::Update::Error-Mode=any", "update"]);
        let shown = progress.clone();
        let what = format!("downloading the package lists for {}", self.what);
        tool::run(&what, &mut command, progress, move |line| show_progress(line, &shown)).map(drop)
    }

    /// Downloads the packages of a selection, and returns their files.
    fn download(&self, selection: &Selection, progress: &Progress) -> Result<Vec<PathBuf>, GuestError> {
        progress.step(&format!("downloading {}", self.what));
        let mut command = self.command();
        self.add_install_arguments(command.arg("--download-only"), selection);

        let shown = progress.clone();
        let what = format!("downloading packages of {}", self.what);
        tool::run(&what, &mut command, progress, move |line| show_progress(line, &shown))?;

        self.archives(selection, progress)
    }

    /// Adds the arguments that select the packages and their dependencies.
    fn add_install_arguments(&self, command: &mut Command, selection: &Selection) {
        command.args(["--yes", "--no-install-recommends"]);
        if let Some(target) = self.target {
            command.args(["--target-release", target]);
        }
        command.arg("install").args(&selection.packages);
    }

    /// Returns the files of the current selection. An interrupted download may have left older
    /// versions beside them.
    fn archives(&self, selection: &Selection, progress: &Progress) -> Result<Vec<PathBuf>, GuestError> {
        let mut command = self.command();
        // apt omits packages that are in its cache, so it gets an empty one.
        let empty_cache = format!("Dir::Cache::archives={}", self.folder.join(NO_ARCHIVES).display());
        self.add_install_arguments(command.args(["--print-uris", "-o", &empty_cache]), selection);

        let what = format!("listing the packages of {}", self.what);
        let lines = tool::run_quietly(&what, &mut command, progress)?;
        let folder = self.folder.join("cache/archives");
        let files: Vec<_> =
            lines.iter().filter_map(|line| file_name(line)).map(|name| folder.join(name)).collect();

        match files.iter().find(|file| !file.is_file()) {
            Some(missing) => Err(GuestError::Unsuitable {
                path: missing.clone(),
                problem: "was not downloaded; did the mirror change meanwhile? try again".into(),
            }),
            None => Ok(files),
        }
    }
}

/// Returns the file's name from a line of `--print-uris`: `'URI' NAME SIZE HASH`.
fn file_name(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    rest.split(' ').next().filter(|name| name.ends_with(".deb") && !name.contains('/'))
}

/// Shows the progress in apt's status lines: `dlstatus:NUMBER:PERCENT:TEXT`.
fn show_progress(line: &str, progress: &Progress) {
    let mut fields = line.split(':');
    if fields.next() == Some("dlstatus")
        && let Some(percent) = fields.nth(1).and_then(|percent| percent.parse().ok())
    {
        progress.percent(percent);
    }
}

/// Returns apt's list of package sources: a selection's suites on one mirror.
fn sources(selection: &Selection, mirror: &str) -> String {
    let suites = selection.suites.join(" ");
    let mut text = format!("Types: deb\nURIs: {mirror}\nSuites: {suites}\nComponents: main\n");
    if let Some(keyring) = keyring() {
        text.push_str(&format!("Signed-By: {keyring}\n"));
    }
    text
}

/// Returns a package database in which only the assumed packages are installed.
fn package_database(assumed: &[&str]) -> String {
    let unique: BTreeSet<_> = assumed.iter().collect();
    let stanza = |name: &&&str| {
        format!(
            "Package: {name}\nStatus: install ok installed\nVersion: 999\nArchitecture: amd64\nMulti-Arch: foreign\n\
             Maintainer: nobody\nDescription: assumed\n\n"
        )
    };

    unique.iter().map(stanza).collect()
}

/// Returns the configuration of a private apt in `folder`.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    // The host's hooks, which clean its cache or notify its desktop, must not run here. The host's
    // other settings in this list must not mix with those below.
    let cleared = [
        "APT::Update::Pre-Invoke",
        "APT::Update::Post-Invoke",
        "APT::Update::Post-Invoke-Success",
        "APT::Update::Post-Invoke-Stats",
        "APT::Install::Pre-Invoke",
        "APT::Install::Post-Invoke",
        "APT::Install::Post-Invoke-Success",
        "DPkg::Pre-Invoke",
        "DPkg::Post-Invoke",
        "DPkg::Pre-Install-Pkgs",
        "APT::Architectures",
        "APT::Default-Release",
        "APT::Keep-Downloaded-Packages",
        "APT::Periodic",
        "Acquire::Languages",
    ];

    let mut text: String = cleared.iter().map(|name| format!("#clear {name};\n")).collect();
    text.push_str(&format!(
        r#"Dir::State "{folder}";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::State::extended_states "{folder}/extended_states";
Dir::Cache "{folder}/cache";
Dir::Cache::archives "{folder}/cache/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Log "{folder}/log";
Dir::Etc::sourcelist "{folder}/sources.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Keep-Downloaded-Packages "true";
APT::Sandbox::User "root";
APT::Get::List-Cleanup "false";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::PDiffs "false";
Debug::NoLocking "true";
"#
    ));
    text
}

/// Unpacks packages over each other into `tree`.
pub(crate) fn unpack(
    what: &str,
    packages: &[PathBuf],
    tree: &Path,
    progress: &Progress,
) -> Result<(), GuestError> {
    progress.step(&format!("unpacking {what}"));
    for (number, package) in packages.iter().enumerate() {
        progress.percent(number as f32 * 100.0 / packages.len() as f32);
        let mut command = Command::new("dpkg-deb");
        command.arg("--extract").arg(package).arg(tree).env("LC_ALL", "C");
        tool::run_quietly(&format!("unpacking {}", package.display()), &mut command, progress)?;
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_mirror_is_a_source_that_apt_knows_as_debian() {
        let found = debian_mirrors(&lines(
            "Packages bookworm stable file:/tools/ Tools\nPackages bookworm main file:/debian/ Debian\n\
             DEP-11 bookworm main file:/other/ Debian\nPackages bookworm-updates main file:/debian/ Debian",
        ));
        assert_eq!(found, ["file:/debian/"]);
    }

    #[test]
    fn without_lists_the_likeliest_source_comes_first() {
        let found = debian_mirrors(&lines(
            "Packages stable main file:/graphs/ $(ORIGIN)\nPackages bookworm main file:/a/debian/ $(ORIGIN)\n\
             Packages noble main file:/ubuntu/ $(ORIGIN)",
        ));
        assert_eq!(found, ["file:/a/debian/", "file:/graphs/"]);
    }

    #[test]
    fn a_host_of_another_distribution_has_no_mirror() {
        let none = debian_mirrors(&lines(
            "Packages noble main file:/ubuntu/ Ubuntu\nPackages stable main file:/g/ Graphs",
        ));
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn a_packages_file_is_the_second_word_of_its_line() {
        let line = "'http://mirror/debian/pool/main/a/a/a_2%3a1_amd64.deb' a_2%3a1_amd64.deb 1234 SHA256:00";
        assert_eq!(file_name(line), Some("a_2%3a1_amd64.deb"));
        assert_eq!(file_name("Reading package lists..."), None);
        assert_eq!(file_name("'http://mirror/x' ../x.deb 1"), None);
    }
}
