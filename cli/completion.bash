# Completion of `tessera` for bash: subcommands, options and their values, recipe keys and their values, else file names.
# All words come from the completed program itself (its --help and `recipe --keys`), so they fit its version. The command
# after `tessera launch` is completed as well if it is `tessera` again.

# Prints the keys of a recipe as --set takes them: train.steps=. Other tables, as "a data set", have no such keys.
_tessera_keys() {
  "$1" recipe --keys 2>/dev/null |
    awk -F '`' '
      /^### / {split($0, words, /[ ,]/); section = /^### [a-z]+(,|$)/ ? words[2] : ""}
      /^\| `/ && section != "" {print section "." $2 "="}' | sort -u
}

# Prints the values of a recipe's key if they are words: the table has them as "adamw \| sgd".
_tessera_key_values() {
  "$1" recipe --keys 2>/dev/null | awk -v key="$2" '
    /^### / {split($0, words, /[ ,]/); section = words[2]}
    /^\| `/ {
      gsub(/\\\|/, "\001"); split($0, cells, "|"); name = cells[2]; gsub(/[` ]/, "", name)
      if (section "." name != key || index(cells[3], "\001") == 0) next
      count = split(cells[3], values, "\001")
      for (i = 1; i <= count; ++i) {
        gsub(/^ +| +$/, "", values[i])
        if (values[i] ~ /^[A-Za-z0-9_.-]+$/ && values[i] !~ /^(text|number)$/) print values[i]
      }
    }' | sort -u
}

# Prints the subcommands and the options in a help text.
_tessera_words() {
  "$@" --help 2>/dev/null |
    sed -nE -e '/^Subcommands:/,/^$/ s/^  ([a-z]+) .*/\1/p' -e 's/^ +(-[a-z],)?(--[a-z-]+).*/\2/p'
}

# Prints the values of an option if the help text lists them, as in auto|cpu|cuda; ",..." at the end means a list of values.
_tessera_option_values() {
  local option=${1//_/-}
  shift
  "$@" --help 2>/dev/null | awk -v option="$option" '
    /^ +-/ {
      count = split($1, names, ",")
      sub(/=.*/, "", $2)  # some versions of CLI11 print the default here
      for (i = 1; i <= count; ++i) if (names[i] == option && $2 ~ /\|/) print $2
    }'
}

_tessera() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  local words='' prefix='' asked='' key='' i count command
  COMPREPLY=()
  if [[ $current == '=' ]]; then  # bash cuts --set=train.steps=5 at the signs
    before+=('=')
    current=''
  fi
  if [[ ${before[0]} == launch ]]; then  # the program that it starts
    for ((i = 1; i < ${#before[@]}; ++i)); do
      if [[ ${before[i]} == -- ]]; then
        ((++i < ${#before[@]})) || { words=tessera; break; }
        [[ ${before[i]##*/} == tessera ]] || return 0
      fi
      [[ ${before[i]##*/} == tessera ]] || continue
      before=("${before[@]:i+1}")
      break
    done
  fi
  count=${#before[@]}
  command=("$program" ${before[0]:+"${before[0]}"})
  [[ ${before[0]} != config || ${before[1]:--} == -* ]] || command+=("${before[1]}")
  ((count == 0)) || asked=${before[count-1]}
  if [[ $asked == '=' ]]; then
    asked=${before[count-2]}
    [[ $asked == -* ]] || key=$asked
  fi
  if [[ -n $words ]]; then
    :
  elif ((count == 0)); then
    words=$(_tessera_words "$program")
  elif [[ ${before[0]} == help ]]; then
    words=$(_tessera_words "$program" "${before[@]:1}" | grep -v '^-')
  elif [[ -n $key ]]; then
    words=$(_tessera_key_values "$program" "$key")
  elif [[ $asked == --set ]]; then
    words=$(_tessera_keys "$program")
    compopt -o nospace 2>/dev/null
  elif [[ $asked == -* && $asked != -- ]]; then
    words=$(_tessera_option_values "$asked" "${command[@]}")
    if [[ $words == *,... && $current == *,* ]]; then
      prefix=${current%,*},
      current=${current##*,}
    fi
    words=$(tr '|' '\n' <<<"${words%,...}" | grep -vxE 'FILE|NAME|N')
  fi
  if [[ -z $words && $current == -* ]]; then
    words=$(_tessera_words "${command[@]}")
  elif [[ -z $words && $count == 1 && ${before[0]} == config ]]; then
    words=$(_tessera_words "$program" config)
  fi
  mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "$words" -- "$current")
}

complete -o default -F _tessera tessera
