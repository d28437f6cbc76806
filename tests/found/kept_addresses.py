# A tile of addresses, kept because two loops need them, was an array of a type that the compiler refused.
import triton
import triton.language as tl

from tests.fuzz_functions import add, bit_and, compose, keep_last, larger_first, multiply
from tests.fuzz_programs import unpacked


@triton.jit
def kernel(x1, x4, x8):
    v2 = (
        tl.arange(0, 128)[:, None, None] * 16 + tl.arange(0, 16)[None, :, None] * 1 + tl.arange(0, 1)[None, None, :] * 1
    )
    v3 = tl.load(x1 + v2)
    v5 = (v3.to(tl.int64) % 2048 + 2048) % 2048
    v6 = tl.load(x4 + v5)
    v7 = v6 + v6
    v9 = (
        tl.arange(0, 128)[:, None, None] * 16 + tl.arange(0, 16)[None, :, None] * 1 + tl.arange(0, 1)[None, None, :] * 1
    )
    tl.store(x8 + v9, v7)


ARGUMENTS = [
    (
        "x1",
        "i64",
        unpacked(
            "int64",
            (
                "c-obl$&$n<3`7kWu>b#KZM?u7rhJ$e@q(VdIJ&C5Af!|(CD-NOzqI`K?-~F8eaGW>Jn{eaI~H7L!}a3txc`nTejjk$@EpAUcmMu7"
                "R-FHRpK-tMcNf-Eao%^G6L$F4GjRU{$A<rD-|zqX_x)#|?|HxLet)0c3hem(ZpG&bzh7~r-5S<Sdo4Kc!SgM0-e<oJ`}4vs0rq&Y"
                "u88M&vA-SXRrt>>*P~x|_*=()UR<xpdQYtHg?$^IbHGmAw;RtvKke|73)eg0XHnv8ga0sIGR`|-_k{H^{&{{EKjJzT+>iE(u=6gs"
                "!}E*89sNDXKG1I-_!;qM!|?)MG>K>K%Z~ja?$93%KVF=-$oCcYD6q#O@lkQ#hJD-Ne*^YTh!38>V*QMp3w}>O;&m+FW%27x;^@Th"
                "3jERV;f5V5>_nW-*aza>h3nk-o_?1l??(6=?_aR4fPLfscCiodXL+r|&O!3&f%R{&BXOR7L7a>7ynW*D^e4vMiG49XX8dWxe(=6k"
                "?6wFF58*wF@HplrJ}<9RCwYcEiTRWFf3dC$&r!v%AK@Xp@X;OXWnAp=L*{$N{Q<l$utO66+JrZ+5}(Z93%*|___Yh~81OURH;X-^"
                "<QcA?ydsKyxKFk(r>t)gyFKtH?g#nRD*1$QPrgQc9>5#oR-WXahV#z}-Y_1?Gnh9o!K+vBZ594S|6?57cwXW?_h%KJWB9eepKk2S"
                "A@!%_ts(Us&)cMK2$D~`@T^th$oLBFe+bVwg-<=W{x0>(EBTW3OqY7E<9p%;d0>Yhn4d8pkbkqDX1+MYKdRW5c`!-+zD#g=ll*u~"
                "9lr`LaQ`B3uZr$rcsC~gm4pXI;kB$oAHkO*b!-y7;1E1w{va<bqE8gTlL!86`K(Kwm<30o@H@uMC4P5FzF|G_O5M&pa|-Tqol)+e"
                "MDIz09~(Zugr8FXOHv1#u5n2H$+|yC-OvQbtd3zEk}pKuzX=|8iK{I8)?}Yn(JPwR{gU-=5)Y5)XXN8i^v6x=*i-60?)$*!jNe^&"
                "){y$O{87hEg3sLVN8(`-o>4`Iy9BqJd|!p{WbyOy$GRm*{?FK7^B?0wm(&~NFVt6exesw`lj}9n39LS)Uw6qLm*|;XR}`InmwJ$V"
                "V@Um*MVBT%5I0U)_bq(mlKLS?9Y!4I^@{KZ=AABhm;Wbk&C=ImzNX%FOP?f*UU^BKX!Z!g+v|i^u9AnF#CewdnZ(bHzX$0LRngsf"
                "pE{|dj)~tT{5}g$Fh6S8mqqwv7W*=8g5cW_9Xd<BTtv@%B!92cHwnUzi^NG1UC;KrOT50K*OQk%f*-`mD0)zrenXJ{(-6JH_Racw"
                "r#$x|bv||cP4tUR>XAcu5p`Jdm?XN$kUk-KRhBv|Nxm~4e@TDp5MFmnzcx<llT~yY>Oq_6gH|UpuSS_a7?XPX5*#?Bze62v5qnsD"
                "!oHC4{Z-;-6W$SIj(~Zc^$v095q+QihcKBl$$}G`=;yoWPs|6W;Dq@#<L{7qV@O`OrG6MvZ#@#vyXbGmpOVzGN$Q&}b^R*(P7?ek"
                "9-I>QS$M)sUmxO^#9i{ETk5bXeU>Qoo9P9N2gYHO_->-V6v;oA=&RQMXu=z3`F9r_G5kCQCm7$16XIBs`JPSqqV4Y{`k3`Yljs<S"
                "=x9~&a1}jx7rmABN1pi2EjnhAd|R=<QRYSHU%T`(y722D`bQCbeWkx){f;jE`bXl5&&lh(f=i3k4MTKdKG!We(k}CG#%GJ<?L+XD"
                "eWOR}vRmrEJeflZleicY`>oRF&67EeI*BLC(>4dm>sue>5&y9MQJ49kGMW2WW$uo+V7RwQzqLxe7$@_fLvW@1k$<mJUp+F{RRr%&"
                "$&WT48H6`qQlBTmn<hG7kvW|rII+qcT#)&{WrAOMvc4|*o7Hbs>MEP-Oj5@e;WJ(47jEGRxAcRv<cBhuyQ`89U)iT7`RJYK^yZhQ"
                "hZMoVDEz~8$W`{&>gjbdf7ygzM#(=-`c;?Y%QTr2uA-|v!grg@Wxt|79FiAy(X*QDkKt&W=tMRzX8B|noj6K9AdW6lC)<1><Kvcj"
                "vLyP)JK-;U52HxE^2+z8%!e4?eMQF`(&uQR&ztTP1oxZxr|AVn^g^2#KIA<g<FkkGy+d#;|8d<}^a}HnB>h6`tG!Yev5v91fJgHF"
                "EBe$rsSBg<80zD<)azaPSIeaTZS%N`%*T)y4w+wLoV{YNTlSNFV()!19{G6?{G^Uz^VLcGV;9|G5jzrZ?YWE8J5l;v)_=73;;Qg5"
                "o12Q#x4b1k2EpASx^$NK>@uHpi9T8-e)freX78f}@$WE+%Q3+ndmn(f8zp|D;2ihG=3!ZvQjae(PxgpD8H5kliQZU+N7{Rz#!Hjv"
                "`s}+U(eJCwnOXmG5x&HEBzq6FNgvJn{<AvC=6Fug*%smdjJHkvCkRhBozwaq<h!rLO_V+*b>l^N!zy`+dFP(Y^%K8>^bhR4AnMuF"
                "kxt=j<Qep@B>Gwu|9WMf(0F%{I5)km%lkOD=m^vsi_ELM(zlP2Usvh3JQF?hkvWk^cyW-rGRyqfHqnDlsUL^Lm+3!E{OUXY1IG~Y"
                "?*"
            ),
        ),
        0,
        False,
        False,
    ),
    (
        "x4",
        "f32",
        unpacked(
            "float32",
            (
                "c-n250n+Or2!y>^$jv;8Hz~P^M|q8P;luxRCetR3MqybN(wbXq{qsATw{`B{@A>_n-*5XK>+^i?xqjd8XS~<#_uKdP?_?kEy#BlI"
                "o#P$5j_-5Ee#ZOT>^G<HdwoCm9j|fkJ@1%xZ69NgZ};zh=UUsIxBb@e9`E^D=Z!U3uJaxL{@3>Nbx-Vl&+}ei<M#8`diNft_Pp2E"
                "c>jLxyPsuW&+EG1_kLr}w#Qh`{r*2Z*Wb6TG=BNV)0chwSALM4w5}=t@BL59ef7Q1zSleUz4Djq+FpaOWP8lQiDB#o|K7P4{nvrJ"
                "g*D6jv^Uvp{SVA6TUlaLHr85&Rl}YfYu23F^YZyI#^5huApB{G7vgqd>i%8R`P{f$zIqaKVVCWLg_#|5W@#_s#&Dn3YrwQ@s{e>f"
                "*?G#AE%(E<kq=_N{alT28%J8V;_dzL8Mf~mo_5h(!jEE)m{Baq#$#jCw*RM|zt6R2t*aaGgBWdyBj0;A?1{fMb^yQ2R(Imffc1!h"
                "J-2KhoT4=~+`DZmjuU3&li)u1SlmM%6W2P%=$XWmxI6Ib8FPmCmQT!akNm7PeiGk{BdqeIu4xTJc;EY1ei0AT&$>sx4SYTD1D+up"
                "X|Lk)SpSn4q(8L=<u>w@cu4%H_z<Qwckt6E=kGeeRe^;k?G}7}C7w+A^v*RK_9kp;J&aG;f^oX=VVR32Fj6?;&e)-U0uQi>Ay+BZ"
                "#l7;^05&w<5#tT^a7$iS{!{*vzYVeEN8Sh=z~9TiEipNfV-0b)_HiY)IUjXRLr#?K2RJ~s39ZAN4E%Q3NqpF4-zTw1pEplT(YL}$"
                "J9L}0l7shxkG<v>avbg5k$=T4;>+PxXDIJ02bX7C@<oGAXjV0i_*@)IKJkOol;b<NR`J&n@7!1Lm1PWcV1<5_jr8e<MrOQA*9z0Y"
                "&4@GYt>HX)^MSs&)5rSFxSZhdft*jfhQ>U&v*Reb;z|FJ^9rWDa+#BhE%j1^E%Y2}7x7JSC-~{S9(9D}w_-sy4Bd!WTp#efICelg"
                "I<?qS^-1W$54i5hI6HZ7Sk@Y{t3itzd>MI3Ylof;ZR>TP%Foh^s(qqffi?(@1s;>un25KirI23+>Y4#g51nVpCBlI6Nz@Zh)e;jN"
                "sy#&hhCYd0ar%-q1L8gWZ{QKwP?#3x!VeE(^scp)G`T_RHfYF+_>~Q0QzOrL#;|-4`Q%R98uEj1${IK72*l{5?zFUto<C^whPv*^"
                "$%dMM`C@`wC+x0VTIw-F4c%(K_hTK38N=QUy8Tambf@pdWfPi;T*&y;KB#9DE9BWTe@<|eaA}AUjW_1*hQ5d=2M^@f$nRI(w;vet"
                "qbH#{fpxzf+Bj;P3-dv*8?-@3Z$?<`u!G`J`|R+g=F@)-e$f05Zf~qT4EmQE<H@-P>&Q>-2L&El=61$f(Q96HSBbwXdm0lxuWo<)"
                "UykFPGin%U>&TDbLWc&?^$GnNcD?`BOWhAGj9yJgZkPYvjvDs?p21<ln)L2OJ{_okWosvApM4B!edO2Zr#z{rqgRIWuo3z+!)tA%"
                "IYWcm(bH*vdlKSCN8Vz8LAi!`tXbv32^}5U4*nU)In8UYAfCfq2t6@TH%ITl(<h<zuFRo|qlO&ak#|a86Lk>zVS2592kLujNe3n;"
                "dZ@<VhFT1oM_5s;4L@q|gSV8!#EsF{Wlz;AzY5pw(Cr2d(yjX0P+t&#p?~0i^_e5j-`OW~tD2<2?x9Z``p2KDZ9^wIG#0t?lQCO*"
                "!B?$e+7UOjmmyvZ{2P6F^l=*We@ETQwGHS~+I4ze8}T1?&7E;O(NCbJ>gab&^xK1L9@vLH+N1x^*p65_daNC_X~}gLY;ojcJMcSD"
                "hZJq?l`jmvN$H@t$Ep^Oo~c7)w;J23T?TqX9etbfj>T%c`H|x%>V&~Q5Na3ms(U(gRq5w~M<(7aH1xiPS59>3pU_vVVG%oi_9U*O"
                "&(C)d;6T<;1HKbB2J~a;X|UeB5)U19rupA@HyyoE@z4Oj5AYg$Qkp01K~4Q+%uVvt@t%jhTE*@lMy&F`_A$ZP=CzNZJRWs}*E)pH"
                "7|gqd_eeK#Hu5C<$KqFmJtq30j=HZQ9<^`9@AUe<;nao${9Ske`6qY)HDpI!)nTJ%M-R<wA8VqnAXW|Y4Ak)RtZVSzk3D_m*3KR<"
                "uxLmBE&O;@Uew&=Fvf{fZ$7nG<>=L%a|nND4`L!d+VS3Xpr3yB9Qn?p14pdGqLyxW$BOqHjqkJ2H|Sn<kMtRPjzvTM$EV$n_qEU="
                "Zk3BCxGnPY@%}F~B4Tx(?{N?PR(f<-<_JeGGJM+p0a=n6tp"
            ),
        ),
        0,
        False,
        False,
    ),
    ("x8", "f32", unpacked("float32", ("c-rm50SN#A2*9vMvwsSsm_yiLwUer<s;a80s`~l?kXitU")), 0, True, False),
]
GRID = 1
OPTIONS = {"num_warps": 4, "keep_warps": True, "enable_fp_fusion": False}
EXPECTED = {
    "x8": unpacked(
        "float32",
        (
            "c-nQD0g@{r2t+-KN5PwT6pn^B`<q1c(KCOmQpqNcB0|%&t<BY%M{73z-tG5lf3LoN@AmgT$8SvRaqaK@^Jn|}wqKv$KhNj*^ZeRl"
            "_Wz&fKHq&l_x#;{V?O_X=J>ADeq-9UDd#-)e%9M_+nz7~CZ5l^KI1>%TfX+%xrbxd{_X3FcE`_cZv<@JpMC$9{`tK3b?wT1etnE_"
            ">Fe|}$NT;+*Uk0%-t%`qd(VNr`GVi#`o*^G`8>}oFkjjbu+QWAJ?9M0t^T%aSNiJr#eTPYPPtzCJ^h(}FvLWTi@56-+uGgBcm8!_"
            "CjH3x=&L@P=XBzJ-Lv%l8}s2CS9bT7>y~^m#NE2_(d>?4-WhBPoKeQt95w#ZwzJ=cnBKpgxXU=qSNd+<+--4lHvMp72KzPGGZFW>"
            "ex6@Lo_>9?5O3qgYVI}THs>|*d-_TDPaGpYF-~%QL%tF>PMi(oe#Vg1F^L@$@yq<o=exx5gs<Izq3!16!9L`;Bkw!*WAIb@eFCSN"
            "<gMmg`m6&h^9=a8U@UCzz%F8<;d9!Od+GE)Y;&voNW98%Zq=U|^S-M8_<ZJ%$9vvP<iWu*L+(V4H{zSYw#19hxVM@otS5}GV?XL="
            "$*op>n%FS0)@02Y^*j|<(*Deca*pHLeK2~|by#PZM~2$M+&lHC)jZ%?=eqOFKC9T{@$^4y!<i4~o4+N`p{?o1{60{#=r1P*0_#r="
            "wHq&qiKiaH_vA1QSeVZ^&LY>-JTvt>^3o8u4?e@ZK~5O#J$Z-c`>K4x!Fz~%eD-iTayQ_b30HB{{<9YRrF_niXRI~krA9o)+0y2W"
            "p^$pW{j&~dJ<T)Ac$kR6tg&7AZ;K~4E&FNr_rw(9FZmAbAwDH$WbSm~b&mOR47pfC4P|X%{^zswkKz#H<#7F0&%(&7Tdi#&^>hN8"
            "Xh%d{i+rAWk@>50xnL<V|KvGiVga|~8RIU!lS>U{F1=x^t=em4jHexnd9*2Ulk0Z$66Lv3bC@-W_{@Db<W`>Bl=Du1mKvqLiyD{A"
            "R}*{46}85;sC=Lc$03hA{0-Q|-ozz_*=Kn?*Q0++-#0Es@C;dR-nf*3>m>*8%+m(^dg-g3y<0;)R9*)Tn;7F!xd{6xo>86$F|lws"
            "at!2-#(mfMMqOKb5?>XE4E>z)whkPd5;M#<ttT#=jX4;=4)RqOu6Sy?U7mCLhxkuzQm%v^(nIi5YW%4YQr{1jqCTA1LZ1|J#wIxE"
            "QE`CS9*Fq~K10scrI(MWxXeA0cakIfs(E0jxlMW(k6I(ivxqC{JK_?1Mb=7}9A^I7OMLcKW1>Z^^KP{U^X$3bh^lpD9G%!$H<wFq"
            "|H7BjzplNXXjtqyj^-hHfGOUNr$3T^%u(}oidMl~?dw@98OvRJj#2Z2{Kc2(0l*6r9Vmc_oi!BNk@8Y%NKMXyeIE0GHcr;$7oE~Y"
            "gDe_ItJu@mQ=6gxi}ryY$(28#N1}GC8Yy+OQ(qOosmDR<nxkqZF4{*q|MBDu)VSuT9JPy&4u)IRA+>L^^}gQWh~tTC)H=C`H!X&J"
            "jU$#ypDh^5n(wRH?xLlT)6<vaA#+sT6tGFPAd{Rm(JzUQ4Z592#XsfqN2?Ye5O*V<nj`f$>T0ToD?c&eHdFE>{jU0$-V><K;Y&DJ"
            "t9Kr%Gv^(~9JL26al4-UkG<p3PEhyD{mpu6(5`wS^qiwtta{I4g0rP>wVE@!HgyL2#Brt(FR>-}L@l0uN2hKyDn2)0OanhQ=`X0M"
            "@Gi=u#sT#r=5=49v$4io)tL>ovr8Ry<;uuwjn%^~(7zqL;M}9u-wsZg{+Xh~zuif+sBxb8$a|kh-H+<$F4#Je=ZsDIn3|gQn5-+*"
            "g*sxCw(FU()*WqRJnudVr{_GPnI&(W8k^&(XA;k;JsqrjxtCLI+_i@uwLdWBqgH!2>Oed@m;5+q-JW`e-lfb@wG!Sp@b0X{6YeW`"
            "Z{wo%lUM0oQPCxqXrn_o5qLK3)w>E;eGYi=;GKdkdIzJL0=Y2z7B}IU(2m`zJubajxqoE6Y!!P$@|xQ89RC1y0cZ{"
        ),
    ),
}
