# A masked load and a minimum over all in one loop: the branch of the one made the other lose where its array lies.
import triton
import triton.language as tl

from tests.fuzz_programs import unpacked


@triton.jit
def kernel(x5, x25, x26):
    v2 = (
        tl.arange(0, 16)[:, None, None] * 1
        + tl.arange(0, 32)[None, :, None] * 32
        + tl.arange(0, 2)[None, None, :] * 16
        + tl.program_id(0) * 1024
    )
    v6 = (
        tl.arange(0, 16)[:, None, None] * 64
        + tl.arange(0, 32)[None, :, None] * 2
        + tl.arange(0, 2)[None, None, :] * 1
        + tl.program_id(0) * 1024
    )
    v7 = v2.to(tl.int1)
    v8 = tl.load(x5 + v6, mask=v7, other=1)
    v14 = v8 - 2.0
    v17 = tl.clamp(tl.where(v14 == v14, v14, 0.0), -8.0, 8.0).to(tl.float32)
    v18 = tl.floor(v17)
    v19 = tl.min(v18, None)
    tl.store(x25 + tl.program_id(0), v19)
    v27 = (
        tl.arange(0, 16)[:, None, None] * 1
        + tl.arange(0, 32)[None, :, None] * 16
        + tl.arange(0, 2)[None, None, :] * 512
        + tl.program_id(0) * 1024
    )
    tl.store(x26 + v27, v18)


ARGUMENTS = [
    (
        "x5",
        "f32",
        unpacked(
            "float32",
            (
                "c-n26i;*ik2t>(jn9LN4G8rZlh4P-gYIMMNt6aM~w)H{KG>y#cHVZdf|G!3<&Cl=W|7ZXIZF&~_|NmcWKmR=Yy!ZM3*v~&>e181%"
                "J^%ad`?<bn@84&>zx7<>-uwBU^YilkJof*#*Xnz1`aAa6-*wvG|DV4@YrX#VHSu}h`})3jZ5#OCeACa|-`9TbdkwzlTia%~zx$cv"
                "^RoRc$FOaOy=T|{_IEyGP3*_;neRONS<d6w<Nlm%t~F?nw$EyCjJ?LszCDf)g!Z|=t25R*2F_XY$Zz!i=h@nJ)f{85<9ojEp8x*)"
                "t@)?J@AkRbwvpD5_VIJJc~<XUzx-9_WyhC8>xZw(_w`xtzG}xW<x@kypS`9yXQs2#e18sk#?iTa?X!Jj__2%ZK4s_Y*j97O1{pJc"
                "{M7w?Cu3~K#@hCrSkLz??AZDHZ0}L?YFwSc*KcGuyeD7vz5ejCH$Bt2d}9u_mj9-|30LCy+S-1s7?LgYzG6yvmHyDr`#NzRe)eGS"
                "f7^2fe12)4_c@!PII$ClD==;x|6g%pX!^k&VF~?aI`;0s$Y{7Myp4*5d@+{O=5cUG>ky7JwuKvt>EXc9IJl9%epjCmF0TFl+UwSO"
                "%Y4r{8)3rNu3o>Jc!lv5f5HsK^n(56WBJTaj6}n*JWt|TRP2=>Gar@tF8FN2SFJyD%zZG%;d2vtSUE+$Z!J$6a+_=+?3rGDY#}~Y"
                "%RPqme)nz1XLT-_?=Hk+RLm7#WX!`BKlp0LA2VlzlV~o*n#OYGpXb<0HlCQ1JmoW%^5+0nrGLU#<a@$<afu20jJ}TNU|aa%3i__%"
                "b^(8s_c9MWhr0|v+=h9N=dmz`&ejkwpRp#ME1vZ}_cZ8Jdkn?MWE=pG4f&PvxnLW8#=#MY&&m<XRl<YhMH*MH>*QqR5rdx-=N#NX"
                "aXFDM-A_IiHzcO#Tz<}HVoaW=-qUl<AwLT6XNTR$gTCu@a2&7xyMXnIL*;wz!{HkNY!m<be)fisy(f1quEkH@3*e4}hiYGpj|C3@"
                "o##4Ox*At;a2!L<bl`<zGx7O4=b<0+@<5(+tV!pn@yJ&c4~G0pj5gF2$(_9N7K>Ut=(DngVk6J$IkBX3*LUTM%;U*HqG3sZ*Tq>o"
                "F?wQtos)qVPuL~k-{h17xmEGEkbh_6EQRYm;Ed$%@8OXK-<2;f;@xv_F7vJ*T-V+Q_@MUY;OvS~2ggfJao1SM*g+f`a_2(+(DPvJ"
                "gtH^w8tYKlG;RJOcfFNgiz`L6+KuafQ9~mq48+z1#>rpALzR<^^C4!aA57r1@Hi0b3tVY7j%0|-37=;@PR>1$M<;oxSFXEIvn^@^"
                "-tgr;T#j6j^(gJ=n2Xp)-=NKt+koc}ul!9oCj2SqLj565ohIxMFEG@34j#M^&(s+VJlaun8*A9N;Q_cibAirCF`9dM+d5k;YmXDW"
                "jq&bYIS6ap^aVR}25hbUE6)yKPO<-ce4cqFbAZ>Het?Gu@{b{Y71zmIz1lC={MMRPI3M6B6ZID3D{&k)Ox=mv8OAisv%n8K-wJ3^"
                "#I+wzg8eS=esaU)`ECDt&f3gdZed;Q$T#B0^4HWM5O0}Zp_S>Z3!h{S9H*9A;J;}jKYCG+x7?^fz&Te`+Yqm5d*<7~+N4(qX9N2Z"
                "?+a)>0sj!kGhn82(DGkgQY@2~daI`=_1^2`*MVG?8WVIJ>RiNT@?XXp@oX^0T7Joxys95Erx^6@V60u|{0H_syy{5<+*9wX)}&1}"
                "o+ED4MmO>}_(ES->L2gnB-B4=)EYS8`vu4C>}f)mTEH)IU2nXt;0&-ewHoAy^r@))p=%Yh@xd9D<4tHQv+XtfS5swezL2||x-K+h"
                "#u)no9#t>pIH_rP)d2!I!lULO#W}TW>S57xU$j`upS#8M1FrLr9KX=VVC^mcaB#Y;zwTd77EyJa)LP-&fmqG_>Zd04_|+5!bTjH)"
                "6S_;$nZQ+8%aPkg)3FqHiGjqCr(%!z1jo+z?o&ez@RHfqm0Zxk+wbEalU(bnbB-3jIt!0lM^CTcTa6PfueDV`Pp6jg!)4x@YbG@Q"
                "Xnn9!TcO9MdDyd~&Q6SxEgjmR6D!zj@TPGZa^j1)N8GZvu$pF@x(9Ru_Q~ik0~{w~`#O9oP&<{+-Oz`h<D0T0dvrWAkLtI9JxuU+"
                ")-b|gXAO!vEcG4qGxChthlFn#{SG}0emC_p`XKn3LyvT?^-OAGZ{?cQ_Xo7nqBA_d@g?3wjjwZ=-rLCj54f2_%XH|a(YSNZGvWiR"
                "Hy3b%{UT!6Y-h$^%ZkcHSJ%(1YB1BQZx=rH;5YbkYKYL%N*&C8SN!&=2kSvQ_2(r1pm$)<RRdbDe1P0!f_F^ZA&?&g`pKn+LLOu6"
                "u-7&I5%UZB!-U;a_b})i_u-Zk8kNC!irr8z1+Z>H17}Zefv0<~_uvOvvwGDqcqZ(>1p36O9o}aT*)zBgSMK*WgijN7=V1MTn#PH@"
                "_whZa29GruFmoZ7uBdkvvbI2tK>cTU>!DtiqbVMwrG-~*FQAq4u0%j<$@>NG(FX=}2J#4Fod7*A<B2|qdT=3TXVl(gc&*U~@{@Vh"
                "+Z{D@(FMKssKV=gmCRcP-)Oux<2fo9H`ayFos)YtoMX+jpw%1iR9vV--h+v>4Qnd$AL`Zv8Up=mG@r@47vTLpHz}8uSn#I3;QmO~"
                "6X-V)*OI$fwRLK0@Nw2ag{yeIb7ZaOF;U+J?3wqAaLxnuZJ^E&My!@U*~=O24pHe(V7%lGQO}g|J;2G?3z0vi|27Wnt=~MN;v?gi"
                "+GT1RPrV})&|n-IKJUGy9|2Px7)gzNM%BEEE{B}#;M~*eIa6O}|E1iYY8;Qe$lHBC1CB?l6WL24&oSu7d0&b5EUfkb*#BD4!l^;h"
                "4$R-i{=rlG_w1wTEWL4c_SJa5jeV?zemnJH))rl#D0Qb-t)ARr{;U7Mdj?T^IF4G68XDt(`Loo2UhA*yRkR*;M7y(dog70>uk$Ir"
                "H}ng8&FaWa(bi;9b+B@uikjsE|F(MP&k@U=`xjlsYW{Zi=AMJy^w+G@pf6av-w;vnJ?4E?Z@sV9x0zn=W;(EKAXX=IUDm*iPxc2q"
                ">bX%DjaFx|cd>Avg4%cTo(r1PjamUQLOp~!XvTz9Je}~3-YZM2N6qHYk9gnHyxn6Up0KWoU#wtmn4M?8_5QGV^*P>~OHP8=;oZ=@"
                "E8TR3iM;c3|KUaa#%~QdSkp$;`&si@RJ~FA39p>0++n-mTNuZ>zS{1oI(guAavblK^X{CHn_cyO?N1JZPqJsiJ1+~GH}9xX=Nh={"
                ")o~`8R*-i&$eS)`+D((^{Vj)<Ppy;w$-5l!53V$DFNXbhN1c;37Vm!ExbxfkP=7xDA5gQ#VE"
            ),
        ),
        1,
        False,
        False,
    ),
    ("x25", "f32", unpacked("float32", ("c-muNc;LVQ#Q+nG17Q")), 0, True, False),
    ("x26", "f32", unpacked("float32", ("c-rm5K@9)^2mqmrX8#mMv4#)WsGU?*RaI40RaI40Rn^xIEbxHD")), 0, True, False),
]
GRID = 3
OPTIONS = {"num_warps": 2, "keep_warps": True, "enable_fp_fusion": False}
EXPECTED = {
    "x25": unpacked("float32", ("c-muNU^vJC#Q+Oi0z?")),
    "x26": unpacked(
        "float32",
        (
            "c-nQEjg_oA41?3zxU`g#P7s|?%DXd*ozH@|=j@pu7zl|i$#TY+#~9-rzt{Qsdmr)l`u&@+kB@)vLw~Q||M~Cziu<?!UiCeuzw6|6"
            "fB*4!{QI5a@A&r~-}e#w`1iNp?|y&xZ+~OD&&&5S&(R+5@7TDHfBwe#8|&!fpZ9;>SNA=0>^a`==S%nbpL^WL{k+=W<vd;5@AI7B"
            "XS;5W@%uS{zjWXK{JT!gss6?p>hqVsiyY(Uo;&Sx0?(P}4U9Kmd9A=Ta$F%?OMl<h+TxkN=d7F;%v(DTYx+ID?lsT*F3iEW=RtXY"
            "?fA>NUV%A1?|9U{N3LncLB>VJ)%}c%adMCQx}WpHu}eE{>;5O^{=T-f^F*<8C_jtw!Rs*hv~wzOT=$$YM{=F=S@L?{=U8_Ptc;^$"
            "ueWes`+V5iA@*|4FB{hk#MjI9XY94fc$n(XABi3J^GxJT=J!&^q)R(CgxJu1ze{~Ae4jB_*O0A)_F5JOAeI;hynf<U{x<I!Z#gl5"
            "8HNkL`y6*HXk*^Oyd@^)nDV)5zA+~Q&yo3>bARO+F$X!XiBBtbZWcD)-(?O3@^mGBSq}K~W_%=${^AzbV}2wqFt;kFkB%|9wwHRo"
            "F>i97@_rMTT>O^!ob$}wKJH_{kHT|-ug)j#7k8<TTb4^d-cf%pu0i5kVpfi&_*lS=bI<VvuVgGF*Cg&S2gAmFAubm1KXE59zOeq>"
            "d_p`<OkB*}=$IN|JeqMZuzu(MO@Kp+3xJ8_&*D_@@G!h2#|QI?I0r7SbqnAlI9FIV=0oKebWyv8VSzBF;#>h|pmmrJGJciKRcVl8"
            ">$`{6KrZI<U%=7C*Lvj~AXXA1SM=P@JWQ-xoM-a**m;;(lkrUq322Fce$6}{z`NlbA2$AY(R<psQDde?JvvUwIA;d5=(%x#T$nsu"
            "$H$K0Tr0=+%n@>K<tVg6>WZ9eS)NfFPH3T~1)OIQGkG2A*~*!*V}$p~cy%7RsF!ihL=3Fx*qL~i<CtL@1=?uvo=4AR;&XD#1+9?S"
            "a6tzaZle~VhAnLhKFHk3cwW)@o$n{G@It&Zzca?gT(FvtbyUvnwAjsi>V?+=Il$w2f96)sQ^t4V!HmsK0u~nkt83J@j)pzF-e5f?"
            ")K7Y9QsUXf`09C4yA0$ku`zXbV*0XLh4Z~^jT65XcsH<?g<s%;T-ym=$Q;Y{Y5K;lHKSwKM1AZ!jCDzk)%0ZM40S`@`_sP*%MF>1"
            "^m|h)C6^=~74D9%q4Jy&y;c-zh)L}nJ&yA}1GrFJO&mR+_1Oi@*y@<kG0-(6Yu91EhoHZyjZ2e48%RB-t0n|jh&+J0uXIp!JQ8@~"
            "q8?xki5P7-9XlT@4_JekE?m&K)TPt>l3J(3@Eo<bJlFK1LlL8k-qrDpM~;Cpbpc~?p832&428OG4Dd>6GT`deUT4<56WE`)6YdRx"
            "r|NfMyg#6=P=8mg2F_UO*Id#4EaKuqJ-t{@LkqBm8HjPtqvP;0+#6P#R$VoA-Smc!<ko;LbWIiNa}cQcsf|;cC1zaeI3{4ug=-4h"
            "dLnidPpwEEEQ|v$u+E@gQ98u%nfiSgwmftybjC3MV5z^BCR5iD%~LR(VxEy3FL=e|cKT$Q)5)zFTlDRyF`HL{T07T`crDbI3mSCD"
            "{4j0KAqS-1o6+lp(guiAYRru7WpiC|OO5gA{vOvVkcYKKh$q$tq0T8`vC8^r!H1K~D<9AptS?;~pF5s%e2M#d;n(8A1OD^JYEIyI"
            "`qh~$p=Z3dm{G6!7IazIx?Io?QyrhkFRjKq``VY*{&dZH>8ZgdF%;fP@eQ6OEIt<M2KGx5FH8GI*W|3F^rCw>CSql-2Yt5)s}+xp"
            "Eekz@dWEl89A!1%#dv+`KQK22@P~bm;$hdz(LG-FdSpIha?1kGFV=nF2;v1}dJ!|sOQvqS9OJ#`a&%wo0`Hbb1l_aD%V+JofMLxS"
            "Irls+=(xu`qPAfi%(p(s*}d&B58@)v(q|go+il(&YF6HR##7tWyhP8RpyzpPZYfUx^tzBW{blu8jTIVVsB5h@zn_lDttX-GS5E82"
            "NyhWTG}F<0yscJ+C)zX;^o@*L8#Y+(HSNTH8{&0AmxlRj!MQ%WHcBl%)pa)Y)db!(y=s15>%E=bn`!eofMwQ`DUC~i&+tId2w|Gg"
            "bB*i3d%ST<!v^R`p>AT_2)xC-W1o2XI(z<t7v6eH!|q?+cI<wNyxufFi#3c;Q_`Q9)_a$8f%WO=+b91I_5Syx$BBOWpx<YGFk<ne"
            "w{iAb)G@s2w9)+~QFkD3WxjFF=~CDK?DJj5t=!+?{ivzu9D1H{PlGIOs4<95-0KnW1&Q12$5+n@dWUOGe|lLDd_t4a1D5&c#K+}6"
            "z<^IfZ$@1w(WhWNK@PdBCr<y2y%*})W%_Gb99RCo#D~|UO&g(qG+Bc{H)Q<F`8sUB$7f>-e=~7y#z^&)sSAaA{&@O_>=C_rB!e1C"
            "eb3JDKI3?LLyS?q=oZ$N5zqY@t^av;k8;7I3EO8eeVy5hw*FO^cJ=<L=$~63sp>`T8tSroWU`k4%ns|zFlU(8l`F<m(>&B^_(UF|"
            "c3HNsfc0*9|JalCs0oY{TMhA|b?8ku?qU9pu91Ure(cv}J$$Lp#hd<WH5i^d%xB`>67qGM*U!#5!84a}x#H<BvOl+?YZlfTtkb!-"
            "sr59Y*VyIJA6qM5$Pex>s9I%MjSml*-!XpakG}aSA@kM1Z^5-u*LPw4Qfk!H*W9xa)ZO$C=usXWr&y<#rnTNHvFx&Sqs|E5+wtOU"
            "(lcA`Gg?hGkPqbHp#OVxpF;oB-&x2Np=Zy%46V0@JyHQJ8LZcdzo-$imcP{Tg8mfuDc1f<XfS~%7kx=>JXdt@&GmKL$9Qy}q`o2c"
            "y5=9|71N(?`(>hYD|@W23#h**Yp;QPfVS1ko`Y%oM<2TO)A!s^kFi#mwtsj<?>XgK$od6~JwEi_g}(5zXA$C})pfRafSfVneeX)x"
            "ejOp!Sa*wh!1`g#htl@y`^*-2DD>`yKI(G#aG}n}>woY+*n6eULas%0e~oycc=l-XZ<@Eb&~IO^H{LuFa<td7FZ+18$F=q*Mc;?%"
            "wIcTrOHaPzKIf)cp~FN!Lr=}b*d)&q!{`|;^IMxoz&Jbq1HL-AeE"
        ),
    ),
}
