"""Reading conda files and requirements files: their requirements in pip's words, and refusals."""

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from stoker.environments.check import notes
from stoker.environments.conda_specs import parse_conda_spec
from stoker.environments.files import read_environment
from stoker.environments.location import ENVIRONMENT_FILES, find_environment
from stoker.environments.specification import Specification, stays_below
from stoker.errors import EnvironmentUnusable

HOW_TO = """\
name: project_environment
dependencies:
  # The python interpreter version.
- python=3.6.2

- pip:
  # You must list azureml-defaults as a pip dependency
  - azureml-defaults>=1.0.45
  - numpy
  - tensorflow-gpu=1.12
channels:
- conda-forge
"""


def read(tmp_path: Path, text: str, name: str = "conda.yaml") -> Specification:
    file = tmp_path / name
    file.write_text(text)
    return read_environment(file)


def read_conda(tmp_path: Path, *dependencies: str) -> Specification:
    return read(tmp_path, "dependencies:\n" + "".join(f"- {line}\n" for line in dependencies))


def read_pip(tmp_path: Path, *lines: str) -> Specification:
    return read(tmp_path, "".join(f"{line}\n" for line in lines), "requirements.txt")


def refused(tmp_path: Path, text: str, name: str = "conda.yaml") -> str:
    with pytest.raises(EnvironmentUnusable) as caught:
        read(tmp_path, text, name)
    return str(caught.value).removeprefix(f"{tmp_path / name}")


def test_the_file_of_the_how_to_is_accepted(tmp_path: Path) -> None:
    """Azure's own example: a single = in the pip list, TensorFlow 1, azureml-defaults, an old Python."""
    specification = read(tmp_path, HOW_TO, "myenv.yml")
    assert specification.lines == ["numpy", "tensorflow"]
    assert specification.python_text == "3.6.2"
    notes = {entry.text: entry.note for entry in specification.entries}
    assert "tensorflow.compat.v1" in notes["tensorflow-gpu=1.12"]
    assert "Stoker provides" in notes["azureml-defaults>=1.0.45"]
    assert notes["numpy"] == ""
    assert [entry.place.line for entry in specification.entries] == [8, 9, 10]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("numpy", "numpy"),
        ("numpy=1.19", "numpy==1.19.*"),
        ("numpy=1.19.*", "numpy==1.19.*"),
        ("numpy=1.19*", "numpy==1.19.*"),
        ("numpy==1.19", "numpy==1.19"),
        ("numpy 1.19", "numpy==1.19"),
        ("numpy =1.19", "numpy==1.19.*"),
        ("numpy=*", "numpy"),
        ("numpy>=1.19,<2", "numpy<2,>=1.19"),
        ("numpy >=1.19, <2", "numpy<2,>=1.19"),
        ("numpy!=1.19.*", "numpy!=1.19.*"),
        ("numpy~=1.19", "numpy~=1.19"),
        ("numpy=1.19.2=py38h5_0", "numpy==1.19.2"),
        ("numpy=1.19.2=*nomkl*", "numpy==1.19.2"),
        ("numpy 1.19.2 py38h5_0", "numpy==1.19.2"),
        ("numpy=1.19.0rc1", "numpy==1.19.0rc1"),
        ("conda-forge::numpy=1.19", "numpy==1.19.*"),
        ("conda-forge/linux-64::numpy=1.19", "numpy==1.19.*"),
        ("numpy[version='>=1.19,<2',build=py38*]", "numpy<2,>=1.19"),
        ("numpy[build=py38*]", "numpy"),
        ("numpy=1.19|1.20", "numpy==1.20"),
        ("Scikit_Learn=0.24", "scikit-learn==0.24.*"),
        ("pytorch=1.8", "torch==1.8.*"),
        ("py-opencv=4.5", "opencv-python-headless==4.5.*"),
        ("opencv", "opencv-python-headless"),
        ("tensorflow-mkl=2.4", "tensorflow==2.4.*"),
        ("librosa", "librosa"),
    ],
)
def test_conda_dependencies_become_requirements(tmp_path: Path, written: str, wanted: str) -> None:
    """Versions as conda means them, names as PyPI has them."""
    (line,) = read_conda(tmp_path, f'"{written}"').lines
    assert line == wanted


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("pip=20.2", "Stoker installs"),
        ("cudatoolkit=11.3", "CUDA"),
        ("cudnn", "CUDA"),
        ("pytorch-cuda=11.8", "CUDA"),
        ("libcublas", "CUDA"),
        ("mkl=2019.4", "NumPy"),
        ("libblas=3.9=mkl", "NumPy"),
        ("nb_conda", "notebooks"),
        ("openssl=1.1.1k=h27cfd23_0", "system"),
        ("_libgcc_mutex=0.1=main", "system"),
        ("gxx_linux-64", "system"),
        ("libstdcxx-ng", "system"),
        ("https://conda.example/linux-64/numpy-1.19-py38_0.tar.bz2", "package file of conda"),
        ("azureml-core", "Stoker provides"),
    ],
)
def test_conda_package_unknown_to_pip_is_skipped_with_its_reason(
    tmp_path: Path, written: str, reason: str
) -> None:
    """Conda's own packages, CUDA, system libraries and Stoker's packages are skipped with a reason."""
    specification = read_conda(tmp_path, written, "six")
    assert specification.lines == ["six"]
    assert reason in specification.entries[0].note
    assert specification.entries[0].text == written


@pytest.mark.parametrize(
    ("written", "note"),
    [("weird=9e", "'=9e' is no version on PyPI"), ("flask=1.0|2.0", "the last one is taken: 2.0")],
)
def test_conda_requirement_without_a_pip_form_is_noted(written: str, note: str) -> None:
    """A version outside PEP 440 and a choice between ranges are noted."""
    assert note in parse_conda_spec(written).note


def test_extras_of_a_package_that_stoker_provides_are_kept(tmp_path: Path) -> None:
    """inference-schema's extra for pandas requires pandas, though Stoker provides inference-schema."""
    specification = read_pip(tmp_path, "inference-schema[numpy-support,pandas-support]~=1.1")
    assert specification.lines == ["numpy", "pandas"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dependencies: [numpy\n", ", line 2: this is not YAML"),
        ("dependencies:\n- numpy\n\t- six\n", ", line 3: this is not YAML"),
        ("- numpy\n- six\n", ", line 1: a conda file begins with sections"),
        ("", ", line 1: a conda file begins with sections"),
        ("just words\n", ", line 1: a conda file begins with sections"),
        ("name: x\ndependancies:\n- numpy\n", ", line 2: the section dependencies: is missing"),
        ("dependencies: numpy\n", ", line 1: dependencies: must be a list"),
        (
            "dependencies:\n- numpy\nchanels: [x]\n",
            ", line 3: a conda file has no section 'chanels'; did you mean channels?",
        ),
        ("dependencies:\n- six\n- numpy: 1.19\n", ", line 3: a dependency must be one text"),
        ("dependencies:\n- pip:\n    six: 1\n", ", line 3: pip: must be a list"),
        (
            "dependencies:\n- pip:\n  - six\n  - [a, b]\n",
            ", line 4: an entry of the pip list must be one text",
        ),
        ("dependencies:\n- six\n- '=1.19'\n", ", line 3: '=1.19' is not a conda dependency"),
        ("dependencies:\n- six\n- numpy>>1\n", ", line 3: 'numpy>>1': '>>1' is not a version"),
        ("dependencies:\n- pip:\n  - six\n  - numpy >> 1\n", ", line 4: 'numpy >> 1' is no requirement"),
    ],
)
def test_a_file_of_another_form_is_refused_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    """Not YAML, not a conda file, or an entry that means nothing: the message begins with file and line."""
    assert refused(tmp_path, text).startswith(message)


def test_empty_lists_ask_for_nothing(tmp_path: Path) -> None:
    """A file may name Python alone, and have empty lists and entries."""
    specification = read(tmp_path, "name: x\ndependencies:\n- python>=3.8\n- \n- pip:\nvariables: {A: b}\n")
    assert (specification.lines, specification.python_text) == ([], ">=3.8")
    assert [entry.text for entry in specification.entries] == ["variables"]


def test_bytes_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    """A file in another encoding is not read as something else."""
    file = tmp_path / "conda.yaml"
    file.write_bytes(b"name: x\ndependencies:\n- caf\xe9\n")
    with pytest.raises(EnvironmentUnusable, match=r"line 3: this is not UTF-8"):
        read_environment(file)


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("numpy>=1.19", "numpy>=1.19"),
        ("Pillow == 10.*  # for images", "pillow==10.*"),
        ("requests[socks]>=2; python_version >= '3.8'", 'requests[socks]>=2; python_version >= "3.8"'),
        ("tensorflow-gpu", "tensorflow"),
        ("tensorflow-gpu==2.4.1", "tensorflow==2.4.1"),
        ("tensorflow~=1.15", "tensorflow"),
        ("sklearn", "scikit-learn"),
        ("numpy[extra]=1.19; python_version > '3'", 'numpy[extra]==1.19.*; python_version > "3"'),
        ("six==1.16.0 --hash=sha256:00", "six==1.16.0 --hash=sha256:00"),
        ("foo @ https://files.example/foo.zip", None),
        ("https://files.example/six-1.16.0-py2.py3-none-any.whl", None),
        ("git+https://code.example/a.git@main#egg=My_Pkg", None),
        ("-e git+https://code.example/a.git#egg=a", "--editable git+https://code.example/a.git#egg=a"),
    ],
)
def test_requirements_are_passed_on(tmp_path: Path, written: str, line: str | None) -> None:
    """Specifiers, extras, markers, hashes and URLs reach the installer; a single = is conda's."""
    assert read_pip(tmp_path, written).lines == [line or written]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("git+https://code.example/a.git@main#egg=My_Pkg", "my-pkg"),
        ("https://files.example/six-1.16.0-py2.py3-none-any.whl", "six==1.16.0"),
        ("https://files.example/archive.zip", "None"),
    ],
)
def test_urls_tell_their_package_where_they_can(tmp_path: Path, written: str, name: str) -> None:
    """The egg of a repository and the name of a wheel say which package it is."""
    (entry,) = read_pip(tmp_path, written).entries
    assert str(entry.requirement) == name


def test_options_are_kept_for_the_installer(tmp_path: Path) -> None:
    """Indexes and switches; paths become absolute, short names long, and each is there once."""
    (tmp_path / "wheels").mkdir()
    specification = read_pip(
        tmp_path,
        "-i https://index.example/simple",
        "--extra-index-url=https://more.example/simple",
        "--extra-index-url https://more.example/simple",
        "-f wheels",
        "--pre",
        "--only-binary :all:",
        "six",
    )
    assert specification.options == (
        "--index-url https://index.example/simple",
        "--extra-index-url https://more.example/simple",
        f"--find-links {tmp_path / 'wheels'}",
        "--pre",
        "--only-binary :all:",
    )


def test_files_include_each_other(tmp_path: Path) -> None:
    """`-r` and `-c` are relative to the file that names them, also in a conda file's pip list."""
    more = tmp_path / "more"
    more.mkdir()
    (more / "requirements.txt").write_text("six\n-r deeper.txt\n-c limits.txt\n")
    (more / "deeper.txt").write_text("\\\ntqdm \\\n  >=4\n")
    (more / "limits.txt").write_text("six<2\n")
    specification = read(tmp_path, "dependencies:\n- pip:\n  - -r more/requirements.txt\n")
    assert specification.lines == ["six", "tqdm>=4"]
    assert specification.options == (f"--constraint {more / 'limits.txt'}",)
    assert specification.files == (more / "limits.txt",)
    assert [str(entry.place) for entry in specification.entries] == [
        f"{more / 'requirements.txt'}, line 1",
        f"{more / 'deeper.txt'}, line 1",
    ]


def test_local_projects_and_wheels_become_absolute(tmp_path: Path) -> None:
    """Where the installer is started does not matter; what decides the installation is remembered."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    (tmp_path / "six-1.16.0-py3-none-any.whl").touch()
    specification = read_pip(tmp_path, "-e project", "./project[fast]", "six-1.16.0-py3-none-any.whl")
    assert specification.lines == [
        f"--editable {project}",
        f"{project}[fast]",
        f"{tmp_path / 'six-1.16.0-py3-none-any.whl'}",
    ]
    assert specification.files == (
        project / "pyproject.toml",
        project,
        tmp_path / "six-1.16.0-py3-none-any.whl",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("six\n\nnumpy >> 1\n", ", line 3: 'numpy >> 1' is no requirement"),
        (
            "six\n--extra-index https://x\n",
            ", line 2: --extra-index is no option of a requirements file; did you mean",
        ),
        ("--index-url\n", ", line 1: --index-url needs a value"),
        ("--pre yes\n", ", line 1: --pre takes no value"),
        ("six\n-r nowhere.txt\n", ", line 2: "),
        ("./nowhere\n", ", line 1: "),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, text: str, message: str) -> None:
    """Lines that pip would refuse after minutes are refused before the build."""
    assert refused(tmp_path, text, "requirements.txt").startswith(message)


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    """A circle of `-r` ends with a message and not with a stack overflow."""
    (tmp_path / "other.txt").write_text("-r requirements.txt\n")
    assert "includes itself" in refused(tmp_path, "-r other.txt\n", "requirements.txt")


def test_known_names_are_found_in_their_order(tmp_path: Path) -> None:
    """A conda file counts before requirements.txt: MLflow writes both, and the first says more."""
    assert find_environment(tmp_path) is None
    for name in reversed(ENVIRONMENT_FILES):
        (tmp_path / name).touch()
        assert find_environment(tmp_path) == tmp_path / name


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """The path that was given stands in the message."""
    with pytest.raises(EnvironmentUnusable, match=r"nowhere\.yml does not exist"):
        read_environment(tmp_path / "nowhere.yml")


@pytest.mark.parametrize(
    ("specifier", "bound", "below"),
    [
        ("==1.12.*", "2", True),
        ("~=1.15", "2", True),
        ("<2", "2", True),
        ("<=1.15", "2", True),
        (">=1,<1.16", "2", True),
        ("==2.0", "2", False),
        ("<=2", "2", False),
        (">=1.0", "2", False),
        ("", "2", False),
        ("!=1.5", "2", False),
        ("<1.27", "1.26", False),
    ],
)
def test_bounds_are_seen(specifier: str, bound: str, below: bool) -> None:
    """Only a clause that keeps all versions under the bound counts."""
    assert stays_below(SpecifierSet(specifier), bound) is below


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("./own", "./own (requirements.txt, line 1) is built by its own setup.py or pyproject.toml"),
        ("-e ./own", "-e ./own (requirements.txt, line 1) is built by its own setup.py or pyproject.toml"),
        (
            "own-1.tar.gz",
            "own-1.tar.gz (requirements.txt, line 1) is built by its own setup.py or pyproject.toml",
        ),
        (
            "git+https://me:secret@git.test/own.git#egg=own",
            "a project of git.test (requirements.txt, line 1) is built by its own setup.py or pyproject.toml",
        ),
        (
            "own @ https://files.test/own.zip",
            "a project of files.test (requirements.txt, line 1) is built by its own",
        ),
        (
            "--index-url=https://me:secret@packages.test/simple",
            "packages come from packages.test (--index-url)",
        ),
        (
            "--extra-index-url http://packages.test:81",
            "packages come from packages.test:81 (--extra-index-url)",
        ),
        ("--trusted-host packages.test", "packages come from packages.test (--trusted-host)"),
        ("--no-binary numpy", "numpy is built by its own setup.py or pyproject.toml (--no-binary)"),
    ],
)
@pytest.mark.parametrize("in_conda", [False, True])
def test_requirement_that_runs_code_is_listed_without_passwords(
    tmp_path: Path, line: str, message: str, in_conda: bool
) -> None:
    """Projects that are built and other sources are listed, for requirements and conda files alike."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "setup.py").touch()
    (tmp_path / "own-1.tar.gz").touch()
    text = f"dependencies:\n- pip:\n  - {line}\n" if in_conda else f"{line}\n"
    (note,) = read(tmp_path, text, "conda.yaml" if in_conda else "requirements.txt").runs_code()
    assert note.startswith(
        message.replace("requirements.txt, line 1", "conda.yaml, line 3") if in_conda else message
    )
    assert "secret" not in note


def test_wheels_and_packages_of_the_index_run_nothing(tmp_path: Path) -> None:
    """Common packages give no line."""
    (tmp_path / "own-1-py3-none-any.whl").touch()
    lines = ("numpy>=2", "./own-1-py3-none-any.whl", "https://files.test/own-1-py3-none-any.whl", "--pre")
    assert read_pip(tmp_path, *lines).runs_code() == []


@pytest.mark.parametrize(
    "address",
    [
        "https://azuremldownloads.blob.core.windows.net/wheels/latest/azureml.assets-1.0.0-py3-none-any.whl",
        "https://azuremldownloads.blob.core.windows.net/wheels/x/azureml.assets-1.0.0-py3-none-any.whl?sv=1&sig=aB%2Bc",
    ],
)
def test_a_file_that_azure_has_taken_away_is_left_out_with_a_line(tmp_path: Path, address: str) -> None:
    """They belong to Workbench projects; no line has a signature. Files of other hosts are fetched."""
    specification = read_pip(tmp_path, address, "https://lab.example/wheels/tool-1.0-py3-none-any.whl")
    assert specification.lines == ["https://lab.example/wheels/tool-1.0-py3-none-any.whl"]
    (line,) = notes(specification)
    assert "left out: Azure has taken this file away" in line
    assert "aB" not in line


@pytest.mark.parametrize("written", ["cntk", "cntk=2.7", "pip: [cntk-gpu==2.7.post2]"])
def test_cntk_is_reported_with_a_remedy(tmp_path: Path, written: str) -> None:
    """A model cannot have it: nothing is installed, and a sentence says why."""
    specification = read_conda(tmp_path, written)
    assert specification.lines == []
    assert "CNTK is no longer published" in notes(specification)[0]
