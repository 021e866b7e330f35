#- files of the cases
mkdir -p data/sub
printf '%s\n' pear apple fig apple banana fig fig > data/fruits.txt
cat > data/sales.csv <<'END'
month,region,total
jan,north,10
jan,south,7
feb,north,12
feb,south,3
mar,north,30
END
cat > data/people.json <<'END'
{"people": [{"name": "Ann", "age": 31, "tags": ["a", "b"]}, {"name": "Bob", "age": 25, "tags": []}, {"name": "Cy", "age": 40, "tags": ["c"]}]}
END
cat > data/server.log <<'END'
2026-11-30T10:00:00 INFO start
2026-11-30T10:00:01 ERROR disk full /var
2026-11-30T10:00:02 WARN slow 120ms
2026-11-30T10:00:03 ERROR timeout /api
2026-11-30T10:00:04 INFO stop
END
printf 'one\ntwo\nthree\n' > data/sub/a.txt
printf 'one\n2\nthree\nfour\n' > data/sub/b.txt
#- counts words
sort data/fruits.txt | uniq -c | sort -rn | awk '{print $2, $1}' | head -2
#- unique lines
sort -u data/fruits.txt | tr '\n' ' '
#- a count of matches
grep -c ERROR data/server.log
#- numbered matches
grep -n 'apple\|fig' data/fruits.txt | cut -d: -f1,2 | tail -3
#- extended regular expressions
grep -Eo '[0-9]+ms|/[a-z]+' data/server.log
#- inverted and without case
grep -vi error data/server.log | wc -l | tr -d ' '
#- recursive search
grep -rl one data/sub | sort
#- context of a match
grep -A1 -B1 WARN data/server.log
#- substitution
sed 's/\([a-z]*\),\([a-z]*\)/\2-\1/' data/sales.csv | head -3
#- lines and deletion
sed -n '2,4p' data/fruits.txt; sed '/fig/d' data/fruits.txt
#- editing in place
cp data/fruits.txt edited.txt && sed -i -e 's/apple/APPLE/g' -e '$a end' edited.txt && cat edited.txt
#- sums by group
awk -F, 'NR > 1 {sum[$2] += $3} END {for (region in sum) print region, sum[region]}' data/sales.csv | sort
#- formats of awk
awk -F, 'NR > 1 {printf "%-6s|%5.1f|\n", $1, $3 / 3}' data/sales.csv
#- functions of awk
echo 'Hello World' | awk '{print toupper($1), length($2), substr($2, 2, 3), index($0, "o")}'
#- awk with a program of several rules
awk 'BEGIN {n = 0} /ERROR/ {n++; last = $NF} END {print n " errors, last " last}' data/server.log
#- sort by a numeric column
tail -n +2 data/sales.csv | sort -t, -k3,3nr -k2,2 | cut -d, -f2,3
#- fields in another order
cut -d, -f1,3 data/sales.csv | paste -sd ' '
#- characters
echo 'Hello, World' | tr 'a-z' 'A-Z' | tr -d ',' | tr -s 'L'
#- lines, words and bytes
wc -lwc < data/fruits.txt | awk '{print $1, $2, $3}'
#- the ends of a file
head -n 2 data/fruits.txt; tail -n 1 data/fruits.txt; head -c 4 data/fruits.txt
#- files by name
find data -name '*.txt' -type f | sort
#- commands for files
find data/sub -type f -exec basename {} .txt \; | sort
#- arguments from input
printf '%s\n' a b c d | xargs -n 2 echo pair
#- one command for each line
ls data/sub | xargs -I{} sh -c 'echo "{}: $(head -1 data/sub/{})"'
#- selection in JSON
jq -r '.people[] | select(.age > 30) | .name' data/people.json
#- JSON to CSV
jq -r '.people[] | [.name, .age, (.tags | length)] | @csv' data/people.json
#- JSON from input
printf '3\n1\n2\n' | jq -s -c 'sort | {min: .[0], max: .[-1], sum: add}'
#- JSON from arguments
jq -n -c --arg name x --argjson n 2 '{name: $name, list: [range($n)]}'
#- differences
diff data/sub/a.txt data/sub/b.txt
#- unified differences without their heads
diff -u data/sub/a.txt data/sub/b.txt | tail -n +3
#- a copy of the stream
echo both | tee copy.txt | wc -c | tr -d ' '; cat copy.txt
#- redirections of both streams
{ echo out; echo err >&2; } > streams.txt 2>&1; cat streams.txt
#- standard error apart
ls data/none 2> /dev/null || echo "status $?"
#- a here-document with variables
name=World; cat <<END
Hello, $name: $((1 + 2)) $(echo nested)
END
#- a here-document without them
cat <<'END' | sed 's/^/> /'
$HOME `no`
END
#- a here-string
read -r first rest <<< 'one two three'; echo "$rest|$first"
#- functions with local variables
greet() { local who=${1:-nobody}; echo "hi $who"; return 3; }; greet; greet you; echo $?
#- recursion
factorial() { if [ "$1" -le 1 ]; then echo 1; else echo $(( $1 * $(factorial $(( $1 - 1 ))) )); fi; }; factorial 5
#- arrays
list=(a 'b c' d); list+=(e); echo "${#list[@]} ${list[1]} ${list[@]:2}"; for item in "${list[@]}"; do echo "<$item>"; done
#- associative arrays
declare -A ages=([ann]=31 [bob]=25); ages[cy]=40; for name in "${!ages[@]}"; do echo "$name ${ages[$name]}"; done | sort
#- expansions of parameters
path=/a/b/file.tar.gz; echo "${path##*/} ${path%.gz} ${path%%.*} ${path/b/X} ${#path} ${path:3:4} ${none:-default}"
#- changes of case
word=heLLo; echo "${word^} ${word^^} ${word,,}"
#- braces and globs
echo {1..3}{a,b} data/sub/*.txt data/?ales.csv
#- arithmetic
x=7; echo $(( x ** 2 % 5 )) $(( x > 5 ? 1 : 0 )) $(( 0x1f )) $(( x++ + ++x )); ((x == 9)) && echo nine
#- a loop that counts
for ((i = 0; i < 3; i++)); do printf '%d:' $i; done; echo
#- a loop over lines
total=0; while IFS=, read -r month region n; do [ "$month" = month ] && continue; total=$((total + n)); done < data/sales.csv; echo $total
#- cases
for word in apple Bob 42 ''; do case $word in [a-z]*) echo low ;; [A-Z]*) echo up ;; [0-9]*) echo number ;; *) echo none ;; esac; done
#- conditions
[[ -f data/fruits.txt && ! -d data/none && abc == a* && 10 -gt 9 ]] && echo yes
#- regular expressions of the shell
[[ 'v1.20.3' =~ ^v([0-9]+)\.([0-9]+) ]] && echo "${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"
#- numbers
seq 1 2 9 | paste -sd+ | tee /dev/stderr 2> /dev/null | sed 's/$/ = 25/'
#- printf
printf '%05d %x %-5s| %s\n' 42 255 ab 'c d' 7 8 e f
#- dates
date -u -d @86400 '+%Y-%m-%d %H:%M:%S'; date -u -d '2026-11-30' +%A
#- names of paths
basename /a/b/c.txt .txt; dirname /a/b/c.txt; (cd data/sub && basename "$PWD")
#- files
mkdir -p made/deep && touch made/one made/deep/two && mv made/one made/deep/ && cp -r made copied && rm -r made && ls copied/deep && [ ! -e made ] && echo gone
#- an end of the stream
yes | head -3; seq 100000 | head -1
#- the status of a pipeline
false | true; echo "$?"; set -o pipefail; false | true; echo "$?"; (exit 7); echo "$?"
#- an end at the first error
set -e; echo before; false; echo after
#- traps
trap 'echo bye' EXIT; echo hi
#- subshells keep their variables
x=1; (x=2; echo $x); echo $x; y=$(x=3; echo $x); echo "$x $y"
#- two inputs
diff <(sort data/fruits.txt) <(sort -u data/fruits.txt) | grep -c '^<'
#- join and comm
sort data/sub/a.txt > sorted.a; sort data/sub/b.txt > sorted.b; comm -12 sorted.a sorted.b; join sorted.a sorted.b | tr '\n' ' '
#- text of bytes
printf 'abc' | base64; printf 'abc' | sha256sum | cut -c1-16; printf 'abc' | od -An -tx1 | tr -d ' '
#- the input of the script
tr a-z A-Z
#- a status
echo done; exit 5
