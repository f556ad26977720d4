"""The words of :mod:`glassformer.data.grammar`, with what their languages need to know of them.

Book: cross_attention
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun: German with gender and plural, English with plural, Chinese with its classifier."""

    kind: str
    gender: str
    german: str
    german_plural: str
    english: str
    english_plural: str
    chinese: str
    classifier: str


class Verb(NamedTuple):
    """A transitive verb and the kinds of things that it can be done to.

    ``particle`` is the part that a German main clause splits off and sends to its end.
    """

    objects: tuple[str, ...]
    present: str
    plural: str
    infinitive: str
    participle: str
    particle: str
    english: str
    english_third: str
    english_past: str
    after: str
    chinese: str


class Adjective(NamedTuple):
    """An adjective: German stem, English, Chinese, and the kinds of nouns it fits."""

    german: str
    english: str
    chinese: str
    kinds: tuple[str, ...]


def _table(rows: str) -> list[list[str]]:
    """Rows of words; ``-`` stands for none."""
    lines = [line.split() for line in rows.strip().splitlines()]
    return [["" if word == "-" else word.replace("_", " ") for word in line] for line in lines]


NOUNS = [Noun(*row) for row in _table("""
    person m Lehrer      Lehrer      teacher     teachers     老师   位
    person f Ärztin      Ärztinnen   doctor      doctors      医生   位
    person n Mädchen     Mädchen     girl        girls        女孩   个
    person f Großmutter  Großmütter  grandmother grandmothers 奶奶   位
    person m Bäcker      Bäcker      baker       bakers       面包师 位
    person n Kind        Kinder      child       children     孩子   个
    person f Frau        Frauen      woman       women        女人   个
    person m Mann        Männer      man         men          男人   个
    person f Köchin      Köchinnen   cook        cooks        厨师   位
    person m Gärtner     Gärtner     gardener    gardeners    园丁   位
    text   n Buch        Bücher      book        books        书     本
    text   m Brief       Briefe      letter      letters      信     封
    text   f Zeitung     Zeitungen   newspaper   newspapers   报纸   份
    text   n Gedicht     Gedichte    poem        poems        诗     首
    food   m Apfel       Äpfel       apple       apples       苹果   个
    food   m Kuchen      Kuchen      cake        cakes        蛋糕   块
    food   n Ei          Eier        egg         eggs         鸡蛋   个
    food   f Birne       Birnen      pear        pears        梨     个
    thing  n Fahrrad     Fahrräder   bicycle     bicycles     自行车 辆
    thing  f Lampe       Lampen      lamp        lamps        灯     盏
    thing  m Stuhl       Stühle      chair       chairs       椅子   把
    thing  n Radio       Radios      radio       radios       收音机 台
    clothes f Jacke      Jacken      jacket      jackets      夹克   件
    clothes m Hut        Hüte        hat         hats         帽子   顶
    clothes n Hemd       Hemden      shirt       shirts       衬衫   件
    animal m Hund        Hunde       dog         dogs         狗     只
    animal f Katze       Katzen      cat         cats         猫     只
    animal n Pferd       Pferde      horse       horses       马     匹
""")]

# objects, present, plural, infinitive, participle, particle, English three, after, Chinese
VERBS = [Verb(tuple(row[0].split("+")), *row[1:]) for row in _table("""
    text                  liest     lesen      lesen       gelesen     -   read   reads   read    - 读
    text                  schreibt  schreiben  schreiben   geschrieben -   write  writes  wrote   - 写
    food                  isst      essen      essen       gegessen    -   eat    eats    ate     - 吃
    thing                 repariert reparieren reparieren  repariert   -   repair repairs repaired - 修理
    animal                füttert   füttern    füttern     gefüttert   -   feed   feeds   fed     - 喂
    food+clothes+animal   wäscht    waschen    waschen     gewaschen   -   wash   washes  washed  - 洗
    text+food+thing+clothes+animal kauft kaufen kaufen     gekauft     -   buy    buys    bought  - 买
    text+thing+clothes+animal sieht sehen      sehen       gesehen     -   see    sees    saw     - 看见
    text+thing+clothes+animal sucht suchen     suchen      gesucht     -   look   looks   looked  for 找
    text+food+thing+clothes bringt  bringen    mitbringen  mitgebracht mit bring  brings  brought - 带来
    text+thing+clothes+animal holt  holen      abholen     abgeholt    ab  collect collects collected - 取
    food+thing+clothes    verkauft  verkaufen  verkaufen   verkauft    -   sell   sells   sold    - 卖
    text+animal           malt ab   malen_ab   abmalen     abgemalt    ab  copy   copies  copied  - 画
""".replace("malt ab", "malt"))]  # fmt: skip
