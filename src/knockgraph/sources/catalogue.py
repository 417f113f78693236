"""The public files that knockgraph reads: where their owners keep them, under which licence, and how to cite them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from knockgraph.errors import KnockgraphError


@dataclass(frozen=True)
class PublicFile:
    """One file of one owner.

    Attributes:
        name: Its name on the command line.
        title: What it is.
        file: Its file name on disk.
        url: The owner's address of the file; blank if it must be fetched by hand.
        page: The owner's page about it.
        licence: As the owner states it.
        citation: The work to cite.
        patterns: File names under which it is recognised in a folder, in order of preference.
        sha256: Of the file, if it is known not to change; otherwise recorded at the first download.
        most_bytes: A larger download is refused.
    """

    name: str
    title: str
    file: str
    url: str
    page: str
    licence: str
    citation: str
    patterns: tuple[str, ...]
    sha256: str = ""
    most_bytes: int = 1 << 30

    @property
    def open_to_change(self) -> bool:
        """Whether the file could be altered in transit unnoticed: plain http, and no known checksum."""
        return self.url.startswith("http://") and not self.sha256

    @property
    def where(self) -> str:
        """Where to get the file, as a sentence."""
        return f"'knockgraph download {self.name}' ({self.url})" if self.url else f"by hand from {self.page}"


def _string(version: str, kind: str, title: str) -> PublicFile:
    short = "physical" if "physical" in kind else "channels"
    file = f"4932.protein.{kind}.v{version}.txt.gz"
    base = (
        "http://string91.embl.de/newstring_download" if version == "9.1" else "https://stringdb-downloads.org/download"
    )
    return PublicFile(
        f"string{version}-{short}",
        f"STRING {version}, {title}",
        file,
        f"{base}/protein.{kind}.v{version}/{file}",
        "https://string-db.org/cgi/download?sessionId=&species_text=Saccharomyces+cerevisiae",
        "CC BY 4.0",
        "Szklarczyk et al., Nucleic Acids Research 51:D638 (2023), doi:10.1093/nar/gkac1000",
        (f"4932.protein.{kind}.v{version}*",),
    )


FILES: tuple[PublicFile, ...] = (
    PublicFile(
        "sgd-features",
        "SGD: genes, names and positions",
        "SGD_features.tab",
        "https://downloads.yeastgenome.org/curation/chromosomal_feature/SGD_features.tab",
        "https://www.yeastgenome.org",
        "CC BY 4.0",
        "Wong et al., Genetics 224:iyac191 (2023), doi:10.1093/genetics/iyac191",
        ("SGD_features.tab*",),
    ),
    PublicFile(
        "sgd-aliases",
        "SGD: a table of systematic names, standard names and aliases",
        "sgd_names_and_aliases.tsv",
        "",
        "https://www.yeastgenome.org (YeastMine)",
        "CC BY 4.0",
        "Wong et al., Genetics 224:iyac191 (2023), doi:10.1093/genetics/iyac191",
        ("sgd_names_and_aliases*",),
    ),
    _string("12.0", "links.detailed", "scores per channel"),
    _string("11.5", "links.detailed", "scores per channel"),
    _string("11.0", "links.detailed", "scores per channel"),
    _string("9.1", "links.detailed", "scores per channel"),
    _string("12.0", "physical.links.full", "the physical network"),
    PublicFile(
        "biogrid",
        "BioGRID: interactions of yeast",
        "BIOGRID-ORGANISM-4.4.240.tab3.zip",
        "https://downloads.thebiogrid.org/Download/BioGRID/Release-Archive/BIOGRID-4.4.240/"
        "BIOGRID-ORGANISM-4.4.240.tab3.zip",
        "https://downloads.thebiogrid.org",
        "MIT",
        "Oughtred et al., Protein Science 30:187 (2021), doi:10.1002/pro.3978",
        (
            "BIOGRID-ORGANISM-Saccharomyces_cerevisiae*.tab3.txt*",
            "BIOGRID-ORGANISM-Saccharomyces_cerevisiae*.tab2.txt*",
            "BIOGRID-ORGANISM-*.tab[23].zip",
            "biogrid*physical*",
        ),
    ),
    PublicFile(
        "tflink",
        "TFLink: transcription factors and their targets",
        "TFLink_Saccharomyces_cerevisiae_interactions_All_simpleFormat_v1.0.tsv",
        "https://cdn.netbiol.org/tflink/download_files/"
        "TFLink_Saccharomyces_cerevisiae_interactions_All_simpleFormat_v1.0.tsv",
        "https://tflink.net/download/",
        "as stated at https://tflink.net/faq/",
        "Liska et al., Database 2022:baac083 (2022), doi:10.1093/database/baac083",
        ("TFLink_Saccharomyces_cerevisiae_interactions_All_simpleFormat*", "TFLink_Saccharomyces_cerevisiae*"),
    ),
    PublicFile(
        "yeastract",
        "YEASTRACT: documented regulations",
        "RegulationTwoColumnTable_Documented_2013927.tsv.gz",
        "http://www.yeastract.com/download/RegulationTwoColumnTable_Documented_2013927.tsv.gz",
        "http://www.yeastract.com",
        "as stated at http://www.yeastract.com",
        "Teixeira et al., Nucleic Acids Research 51:D785 (2023), doi:10.1093/nar/gkac1041",
        ("RegulationTwoColumnTable_Documented*", "yeastract*", "regulatory.*"),
    ),
    PublicFile(
        "yeast-gem",
        "yeast-GEM 9.0.2: the consensus metabolic model",
        "yeast-GEM-9.0.2.yml",
        "https://raw.githubusercontent.com/SysBioChalmers/yeast-GEM/v9.0.2/model/yeast-GEM.yml",
        "https://github.com/SysBioChalmers/yeast-GEM",
        "CC BY 4.0",
        "Zhang et al., Molecular Systems Biology 20:1134 (2024), doi:10.1038/s44320-024-00060-7",
        ("yeast-GEM*.yml*", "yeast-GEM*.yaml*", "yeast-GEM*.xml*"),
    ),
    PublicFile(
        "cyc2008",
        "CYC2008: protein complexes",
        "CYC2008_complex.tab",
        "http://wodaklab.org/cyc2008/resources/CYC2008_complex.tab",
        "http://wodaklab.org/cyc2008/",
        "as stated at http://wodaklab.org/cyc2008/",
        "Pu et al., Nucleic Acids Research 37:825 (2009), doi:10.1093/nar/gkn1005",
        ("CYC2008*",),
    ),
    PublicFile(
        "yeastphenome",
        "YeastPhenome: phenotypes of single mutants, one table of the papers' z-scores",
        "yeastphenome_z.tsv",
        "",
        "https://github.com/yeastphenome/yp-data (Datasets/*/*_valuez.txt)",
        "CC BY 4.0",
        "Turco et al., Science Advances 9:eadg5702 (2023), doi:10.1126/sciadv.adg5702",
        ("yeastphenome*",),
    ),
    PublicFile(
        "go",
        "Gene Ontology: annotations of yeast's genes",
        "sgd.gaf.gz",
        "https://current.geneontology.org/annotations/sgd.gaf.gz",
        "https://current.geneontology.org/products/pages/downloads.html",
        "CC BY 4.0",
        "The Gene Ontology Consortium, Genetics 224:iyad031 (2023), doi:10.1093/genetics/iyad031",
        ("sgd.gaf*", "gene_association.sgd*"),
    ),
    PublicFile(
        "costanzo2016",
        "Costanzo 2016: digenic interactions (pair-wise format)",
        "costanzo2016_pairwise.zip",
        "https://thecellmap.org/costanzo2016/data_files/"
        "Raw%20genetic%20interaction%20datasets:%20Pair-wise%20interaction%20format.zip",
        "https://thecellmap.org/costanzo2016/",
        "as stated at https://thecellmap.org",
        "Costanzo et al., Science 353:aaf1420 (2016), doi:10.1126/science.aaf1420",
        ("SGA_NxN.txt*", "costanzo2016_pairwise.zip", "costanzo2016*.tsv*", "costanzo2016*.csv*"),
        most_bytes=4 << 30,
    ),
    PublicFile(
        "kuzmin2018",
        "Kuzmin 2018: trigenic interactions (Data S1)",
        "aao1729_data_s1.tsv",
        "",
        "https://doi.org/10.1126/science.aao1729 (supplementary Data S1)",
        "as stated at https://doi.org/10.1126/science.aao1729",
        "Kuzmin et al., Science 360:eaao1729 (2018), doi:10.1126/science.aao1729",
        ("aao1729_data_s1*", "Data File S1_Raw genetic interaction dataset*", "kuzmin2018_scores*"),
    ),
    PublicFile(
        "collins2007",
        "Collins 2007: E-MAP of chromosome biology, long form",
        "collins2007_emap.tsv",
        "",
        "https://doi.org/10.1038/nature05649 (supplementary data; also in Bioconductor's SLGI)",
        "as stated by Bioconductor's SLGI (Artistic-2.0)",
        "Collins et al., Nature 446:806 (2007), doi:10.1038/nature05649",
        ("collins2007*",),
    ),
)
"""Every file, by name in this order."""


def public_file(name: str) -> PublicFile:
    """A file by name."""
    found = next((f for f in FILES if f.name == name), None)
    if found is None:
        raise KnockgraphError(f"there is no public file {name!r}; use one of {', '.join(f.name for f in FILES)}")
    return found


YEAST = ("sgd-features", "yeastract", "biogrid", "tflink", "string12.0-channels", "yeast-gem")
YEAST_LITE = (
    "sgd-features",
    "yeastract",
    "biogrid",
    "string12.0-physical",
    "string11.5-channels",
    "yeast-gem",
)
YEAST_CLEAN = ("sgd-features", "yeastract", "biogrid", "string12.0-physical", "cyc2008", "yeast-gem")
SETS: dict[str, Sequence[str]] = {
    "yeast": YEAST,
    "yeast-lite": YEAST_LITE,
    "yeast-clean": YEAST_CLEAN,
    **{f"dango-string{v.replace('.', '_')}": ("sgd-features", f"string{v}-channels") for v in ("9.1", "11.0", "12.0")},
    "dango-lambda": ("sgd-features", "string9.1-channels", "string11.5-channels"),
}
"""Names that stand for several files."""


def chosen(names: Sequence[str]) -> list[PublicFile]:
    """The files behind names of files and sets, each once."""
    return [public_file(name) for name in dict.fromkeys(n for name in names for n in SETS.get(name, (name,)))]
