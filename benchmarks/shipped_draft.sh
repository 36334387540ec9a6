#!/bin/sh
# Makes the draft that is shipped for SmolLM2-135M-Instruct: sh benchmarks/shipped_draft.sh INSTRUCT GSM8K GERMAN WORK
#
# INSTRUCT and GSM8K: JSON Lines with prompts and questions to train on; GERMAN: a folder of German text; WORK: a folder with 12 GB of room. Some eight hours
# of one core: the target says 1.5 million tokens, then 7,000 steps of 16 segments learn 5.5 million positions. Everything goes on where it stopped.
# The shipped draft itself learnt with a cosine that was stretched and cut while it ran (4,500, 2,600, 10,000, 8,700, 7,000 steps), and from the 10,682
# texts that were there by then; the config beside its weights says the rest.
set -e
instruct=$1 gsm8k=$2 german=$3 work=$4
python benchmarks/draft_prompts.py --instruct "$instruct" --german "$german" --output "$work/kinds.jsonl"
outrider train run --data "$gsm8k" --data "$instruct" --data "$work/kinds.jsonl" --text "$work/text" --output "$work/run" --limit 10682 --steps 7000 \
    --set batch=16 --set draft_vocab_size=12288 --set learning_rate=0.0006 --set 'blocks=[9,19,29]' --set 'reads=[9,19,29]'
outrider train export "$work/run" src/outrider/drafts/smollm2-135m --int8
