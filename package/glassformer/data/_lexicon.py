"""The words of :mod:`glassformer.data.grammar`, with what their languages need to know of them."""

from typing import NamedTuple


class Noun(NamedTuple):
    """German with gender and plural, English with plural, Chinese with its classifier.

    Book: cross_attention
    """

    kind: str
    gender: str
    german: str
    german_plural: str
    english: str
    english_plural: str
    chinese: str
    classifier: str


class Verb(NamedTuple):
    """A verb with an object, and the kinds of things that it is done to.

    ``particle`` is what a German main clause splits off and sends to its end: bringt … mit.
    ``preposition`` is what English puts after it: look for.

    Book: cross_attention
    """

    objects: str
    singular: str
    plural: str
    participle: str
    particle: str
    english: str
    english_singular: str
    english_past: str
    preposition: str
    chinese: str

    @property
    def infinitive(self) -> str:
        """The German infinitive: lesen, mitbringen."""
        return self.particle + self.plural

    @property
    def keeps(self) -> bool:
        """Whether the thing is still there afterwards, so that more can happen to it."""
        return self.plural not in ("essen", "verkaufen")


class Adjective(NamedTuple):
    """The German stem, English, Chinese, and the kinds of nouns it fits. Book: cross_attention"""

    german: str
    english: str
    chinese: str
    kinds: str


class Adverbial(NamedTuple):
    """A time or a place: words with the same number translate each other. Book: cross_attention"""

    german: str
    english: str
    chinese: str
    tense: str = ""


def _rows(table: str) -> list[list[str]]:
    return [["" if word == "-" else word for word in line.split()] for line in table.split("\n")]


NOUNS = [
    Noun(*row)
    for row in _rows("""\
person m Lehrer Lehrer teacher teachers 老师 位
person f Ärztin Ärztinnen doctor doctors 医生 位
person n Mädchen Mädchen girl girls 女孩 个
person f Nachbarin Nachbarinnen neighbour neighbours 邻居 位
person m Bäcker Bäcker baker bakers 面包师 位
person n Kind Kinder child children 孩子 个
person f Frau Frauen woman women 女人 个
person m Mann Männer man men 男人 个
person f Köchin Köchinnen cook cooks 厨师 位
person m Gärtner Gärtner gardener gardeners 园丁 位
text n Buch Bücher book books 书 本
text m Brief Briefe letter letters 信 封
paper f Zeitung Zeitungen newspaper newspapers 报纸 份
text n Gedicht Gedichte poem poems 诗 首
food m Apfel Äpfel apple apples 苹果 个
food m Kuchen Kuchen cake cakes 蛋糕 块
food n Ei Eier egg eggs 鸡蛋 个
food f Birne Birnen pear pears 梨 个
thing n Fahrrad Fahrräder bicycle bicycles 自行车 辆
thing f Lampe Lampen lamp lamps 灯 盏
thing m Stuhl Stühle chair chairs 椅子 把
thing n Radio Radios radio radios 收音机 台
cloth f Jacke Jacken jacket jackets 夹克 件
cloth m Hut Hüte hat hats 帽子 顶
cloth n Hemd Hemden shirt shirts 衬衫 件
animal m Hund Hunde dog dogs 狗 只
animal f Katze Katzen cat cats 猫 只
animal n Pferd Pferde horse horses 马 匹""")
]

VERBS = [
    Verb(*row)
    for row in _rows("""\
text,paper liest lesen gelesen - read reads read - 读
text schreibt schreiben geschrieben - write writes wrote - 写
food isst essen gegessen - eat eats ate - 吃
thing repariert reparieren repariert - repair repairs repaired - 修理
animal füttert füttern gefüttert - feed feeds fed - 喂
cloth,animal wäscht waschen gewaschen - wash washes washed - 洗
text,paper,food,thing,cloth,animal kauft kaufen gekauft - buy buys bought - 买
text,paper,thing,cloth,animal sieht sehen gesehen - see sees saw - 看见
text,paper,thing,cloth,animal sucht suchen gesucht - look looks looked for 找
text,paper,food,thing,cloth bringt bringen mitgebracht mit bring brings brought - 带来
text,paper,thing,cloth holt holen abgeholt ab collect collects collected - 取
text,paper,food,thing,cloth verkauft verkaufen verkauft - sell sells sold - 卖
thing,animal malt malen gemalt - paint paints painted - 画""")
]

ADJECTIVES = [
    Adjective(*row)
    for row in _rows("""\
jung young 年轻的 person
freundlich friendly 友好的 person
alt old 旧 text,paper,thing,cloth
neu new 新 text,paper,thing,cloth
groß big 大 food,thing,cloth,animal
klein small 小 food,thing,cloth,animal
rot red 红 thing,cloth
schwarz black 黑 cloth,animal,thing
schön beautiful 漂亮的 thing,cloth,animal
langweilig boring 无聊的 text,paper
süß sweet 甜 food""")
]

TIMES = [
    Adverbial("gestern:0", "yesterday:0", "昨天:0", "past"),
    Adverbial("letzte:0 Woche:1", "last:0 week:1", "上:0 周:1", "past"),
    Adverbial("am:0 Montag:1", "on:0 Monday:1", "星期一:1", "past"),
    Adverbial("jeden:0 Morgen:1", "every:0 morning:1", "每天:0 早上:1", "present"),
    Adverbial("jede:0 Woche:1", "every:0 week:1", "每:0 周:1", "present"),
    Adverbial("morgen:0", "tomorrow:0", "明天:0", "future"),
    Adverbial("nächste:0 Woche:1", "next:0 week:1", "下:0 周:1", "future"),
    Adverbial("am:0 Sonntag:1", "on:0 Sunday:1", "星期天:1", "future"),
]

PLACES = [
    Adverbial("im:0,1 Garten:2", "in:0 the:1 garden:2", "在:0 花园:2 里:0"),
    Adverbial("in:0 der:1 Küche:2", "in:0 the:1 kitchen:2", "在:0 厨房:2 里:0"),
    Adverbial("auf:0 dem:1 Markt:2", "at:0 the:1 market:2", "在:0 市场:2 上:0"),
    Adverbial("vor:0 dem:1 Haus:2", "in:0 front:0 of:0 the:1 house:2", "在:0 房子:2 前面:0"),
    Adverbial("hinter:0 der:1 Schule:2", "behind:0 the:1 school:2", "在:0 学校:2 后面:0"),
]
