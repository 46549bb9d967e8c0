# Completion of `tessera` for bash: subcommands, options and recipe keys; file names where none of these is meant. All
# names come from the program that is being completed (its --help and `recipe --keys`), so they are those of its version.

# Prints the keys of a recipe as --set takes them: train.steps=
_tessera_keys() {
  "$1" recipe --keys 2>/dev/null |
    awk -F '`' '/^### / {split($0, words, /[ ,]/); section = words[2]} /^\| `/ {print section "." $2 "="}' | sort -u
}

# Prints the subcommands and the options that a help text has.
_tessera_words() {
  "$@" --help 2>/dev/null |
    sed -nE -e '/^Subcommands:/,$ s/^  ([a-z]+) .*/\1/p' -e 's/^ +(-[a-z],)?(--[a-z-]+).*/\2/p'
}

_tessera() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} words='' asked i
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    words=$(_tessera_words "$program")
  else
    for ((i = 2; i < COMP_CWORD; ++i)); do
      [[ ${COMP_WORDS[i]} != -- ]] || return 0  # the program that is launched follows
    done
    asked=${COMP_WORDS[COMP_CWORD - 1]}
    [[ $asked != '=' ]] || asked=${COMP_WORDS[COMP_CWORD - 2]}  # bash cuts --set=train at the sign
    if [[ $asked == --set ]]; then
      words=$(_tessera_keys "$program")
      compopt -o nospace 2>/dev/null
    elif ((COMP_CWORD == 2)) && [[ ${COMP_WORDS[1]} == config ]]; then
      words=$(_tessera_words "$program" config)
    elif [[ $current == -* && ${COMP_WORDS[1]} == config && ${COMP_WORDS[2]} != -* ]]; then
      words=$(_tessera_words "$program" config "${COMP_WORDS[2]}")
    elif [[ $current == -* ]]; then
      words=$(_tessera_words "$program" "${COMP_WORDS[1]}")
    fi
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -o default -F _tessera tessera
